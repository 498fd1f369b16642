// A row of a by digits: each block of 32 elements is a step times whole numbers, written as digits of 8
// bits. digits.h says how exact that is.
#pragma once

#include "simd/transpose.h"
#include "rounding.h"

namespace fusewheel::FUSEWHEEL_ISA {

FUSEWHEEL_INLINE int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

#if defined(__AVX2__)

constexpr int kMostDigits = 3;
constexpr int kCodeMiddle = 8;
constexpr int kBlockLanes = kInt4Block / 8;
// Blocks of codes in a vector.
constexpr int kVectorBlocks = kBytes / (kInt4Block / 2);

// A row of a by digits. For each kVectorBlocks blocks, `planes` pairs of vectors, the most
// significant digit first: what meets the low halves of the codes, what meets the high halves.
struct DigitRow {
  int8_t* digits;
  float* steps;  // a block each for one plane, whose products are folded, else four times each; zeros up to
                 // a whole vector
  float* sums;   // of each block's elements, likewise up to a whole vector
  int32_t* start;  // of one lane's sum of products, four a block: what the codes' middle is too much
  int planes;
};

FUSEWHEEL_INLINE int64_t padded_blocks(const LinearWeight& weight) {
  return round_up(weight.columns / kInt4Block, kLanes<float>);
}

FUSEWHEEL_INLINE int8_t* digit_place(const DigitRow& row, int64_t block, int plane, int half) {
  const int64_t vector = block / kVectorBlocks * row.planes + plane;
  return row.digits + (vector * 2 + half) * kBytes + block % kVectorBlocks * (kInt4Block / 2);
}

// Takes the lowest balanced digit off.
FUSEWHEEL_INLINE Integers take_digit(Integers& whole) {
  const Integers digit = whole << 24 >> 24;
  whole = (whole - digit) >> 8;
  return digit;
}

// Digits with which a row is as exact as its dtype; none where a block has no step: it holds an
// infinity or NaN, or nothing but numbers so small that the step's inverse overflows.
FUSEWHEEL_INLINE int digits_for(const float* a, int64_t blocks, Dtype dtype) {
  int digits = dtype == Dtype::kFloat32 ? kMostDigits : 2;
  for (int64_t i = 0; i < blocks; ++i) {
    const Block block = measure_block(a + i * kInt4Block);
    if (!is_finite(block) || is_tiny(block)) {
      return 0;
    }
    if (block.largest > 16 * block.mean) {
      digits = kMostDigits;  // one element outweighs the others
    }
  }
  return digits;
}

// Rounds as many blocks as a vector has lanes, the first `count` of them.
FUSEWHEEL_INLINE Roundings round_blocks(const float* a, int64_t count, float steps) {
  Vec<float> largest[kLanes<float>] = {};
  Vec<float> mean[kLanes<float>] = {};
  for (int64_t i = 0; i < count; ++i) {
    measure_block(a + i * kInt4Block, largest[i], mean[i]);
  }
  fold_all<kLanes<float> / 2>(largest, [](auto x, auto y) { return y > x ? y : x; });
  return round_blocks(largest[0], sums_of<float>(mean), steps);
}

// What the middle of the codes is too much, for a vector of products: a lane sums four neighbouring
// codes in low halves and four in high halves. `whole` are the sums of both, block by block.
FUSEWHEEL_INLINE void write_start(const Integers* whole, int32_t* start) {
  constexpr int each = kLanes<float> / 4;
  Integers order;
  for (int i = 0; i < kLanes<float>; ++i) {
    order[i] = i % each * 4 + i / each;
  }
  const Integers sums =
      shuffle(fold<2>(fold<1>(whole[0], whole[1]), fold<1>(whole[2], whole[3])), order);
  const Integers too_much = sums * -kCodeMiddle;
  __builtin_memcpy(start, &too_much, sizeof(too_much));
}

// Lane i of every four is that of vector i's blocks: the order of fold_pieces.
FUSEWHEEL_INLINE Vec<float> by_pieces(Vec<float> blocks) {
  Integers order;
  for (int i = 0; i < kLanes<float>; ++i) {
    order[i] = i % 4 * kVectorBlocks + i / 4;
  }
  return shuffle(blocks, order);
}

// One lane a block, in the order of fold_pieces, as products of one plane are added up. So many vectors are
// written.
FUSEWHEEL_INLINE void fold_start(int32_t* start, int64_t written) {
  Integers vectors[4] = {};
  for (int64_t i = 0; i < written; ++i) {
    __builtin_memcpy(&vectors[i], start + i * kLanes<float>, sizeof(Integers));
  }
  const Integers folded = fold_pieces(vectors[0], vectors[1], vectors[2], vectors[3]);
  __builtin_memcpy(start, &folded, sizeof(folded));
}

// Writes the digits of a row, the step and the sum of every block. What is left of the last vector of
// blocks becomes zeros.
FUSEWHEEL_INLINE void to_digits(const float* a, int64_t blocks, const DigitRow& row) {
  constexpr int lanes = kLanes<float>;
  constexpr int vectors = kInt4Block / lanes;
  constexpr int half = vectors / 2;
  // The first digit stays below 128 even where the product with the inverse is rounded up.
  const float whole_steps = row.planes == 1 ? 127.0f : row.planes == 2 ? 32512.0f : 8323072.0f;
  for (int64_t block = 0; block < blocks; block += lanes, a += lanes * kInt4Block) {
    const int64_t live = blocks - block < lanes ? blocks - block : lanes;
    const Roundings roundings = round_blocks(a, live, whole_steps);
    Vec<float> totals[lanes] = {};
    for (int64_t first = 0; first < live; first += kVectorBlocks) {
      Integers pairs[4];
      for (int i = 0; i < kVectorBlocks; ++i) {
        const int64_t own = first + i;
        const float inverse = roundings.inverse[own];  // 0 also of blocks that are not there
        Integers whole[vectors] = {};
        for (int j = 0; j < vectors && inverse > 0; ++j) {
          whole[j] = nearest(load(a + own * kInt4Block + j * lanes) * inverse);
        }
        Integers total = {};
        for (int j = 0; j < half; ++j) {
          pairs[i * half + j] = whole[j] + whole[j + half];
          total += pairs[i * half + j];
        }
        totals[own] = __builtin_convertvector(total, Vec<float>);
        for (int p = row.planes; p-- > 0;) {
          Integers digits[vectors];
          for (int j = 0; j < vectors; ++j) {
            digits[j] = take_digit(whole[j]);
          }
          int8_t bytes[kInt4Block];
          store_bytes(bytes, digits);
          __builtin_memcpy(digit_place(row, block + own, p, 0), bytes, kInt4Block / 2);
          __builtin_memcpy(digit_place(row, block + own, p, 1), bytes + kInt4Block / 2,
                           kInt4Block / 2);
        }
      }
      write_start(pairs, row.start + (block + first) * kBlockLanes);
    }
    if (row.planes == 1) {
      fold_start(row.start + block * kBlockLanes, (live + kVectorBlocks - 1) / kVectorBlocks);
      store(row.steps + block, by_pieces(roundings.step));
    } else {
      for (int v = 0; v < 4; ++v) {
        store(row.steps + block * kBlockLanes + v * lanes, repeat_by_four(roundings.step, v));
      }
    }
    store(row.sums + block, sums_of<float>(totals) * roundings.step);
  }
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
