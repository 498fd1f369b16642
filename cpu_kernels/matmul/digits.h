// One row of a against 4-bit codes, in integers: 32 products an instruction instead of 8 (AVX2).
//
// Each block of 32 elements of a is a step times whole numbers, written as digits of 8 bits. Sums of
// products within a block are exact then, and how exact the elements are depends on the digits:
//   3  an element errs by at most 1/4,000,000 of the largest of its block
//   2  for activations of 16 bits: by at most 1/64,000 of it, and 1/4,000 of the block's mean
//   1  activations rounded to int8, where that is asked for
// docs/quantization.md promises these, and the tests hold them.
//
// Codes count from their middle, w = (code - 8) * scale + (zero + 8 * scale): of two large terms that
// cancel, the roundings would be left.
#pragma once

#include <type_traits>

#include "code_rows.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// Rows of the weight read side by side: their sums fill one vector.
constexpr int kDigitStreams = kLanes<float>;

// A row by itself asks for what comes so many blocks later: 8 KiB of codes. With 2 KiB a Zen 5 took 1.1 to
// 1.6 times as long.
constexpr int64_t kBlocksAhead = 512;
// Rows of the weight are read one after another while a has no more digits than these, and stays in the
// nearest cache. On a Zen 4, with 24,576 digits, this took 1.3 times as long as several rows at a time.
constexpr int64_t kTurnDigits = 16384;

// One vector of codes, from their middle, times the digits of a, of which there are two or three.
template <int planes, bool vnni>
FUSEWHEEL_INLINE Vec<float> digit_products(Bytes low, Bytes high, const int8_t* digits,
                                           const int32_t* from) {
  Integers start;
  __builtin_memcpy(&start, from, sizeof(start));
  if constexpr (vnni) {
    Integers whole = {};
#pragma GCC unroll 3
    for (int p = 0; p < planes; ++p) {
      whole = p == 0 ? whole : whole << 8;
      add_products(whole, low, load_bytes(digits + 2 * p * kBytes));
      add_products(whole, high, load_bytes(digits + (2 * p + 1) * kBytes));
    }
    return from_codes(whole + start);
  }
  Shorts sums[planes];
#pragma GCC unroll 3
  for (int p = 0; p < planes; ++p) {
    sums[p] = multiply_pairs(low, load_bytes(digits + 2 * p * kBytes)) +
              multiply_pairs(high, load_bytes(digits + (2 * p + 1) * kBytes));
  }
  Integers whole = add_pairs(sums[0], 256) + add_pairs(sums[1]);
  if constexpr (planes == 3) {
    whole = (whole << 8) + add_pairs(sums[2]);
  }
  return from_codes(whole + start);
}

// As many blocks of a row of a as there are lanes, in that order.
struct BlockLanes {
  Vec<float> steps;
  Integers start;
};

FUSEWHEEL_INLINE BlockLanes block_lanes(const DigitRow& a, int64_t block) {
  Integers start;
  __builtin_memcpy(&start, a.start + block * kBlockLanes, sizeof(start));
  return {load(a.steps + block), start};
}

// How many blocks of as many as there are lanes are there: no more than a vector has codes of.
struct OneVector {
  int64_t live;
  constexpr operator int64_t() const { return live; }
};
template <typename Live>
constexpr int kVectorsOf = std::is_same_v<Live, OneVector> ? 1 : 4;

// The halves of the codes of as many blocks as there are lanes; zeros where fewer than these are there.
template <int vectors>
struct Halves {
  Bytes low[vectors] = {};
  Bytes high[vectors] = {};

  FUSEWHEEL_INLINE Halves(const uint8_t* codes, int64_t live) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      const int64_t left = live - v * kVectorBlocks;
      if (left > 0) {
        const Bytes pair = load_bytes(codes + v * kBytes, left * (kInt4Block / 2));
        low[v] = low_half(pair);
        high[v] = high_half(pair);
      }
    }
  }
};

// The sums of products of so many blocks of codes with digits of one plane, a lane each. Without VNNI they are
// at most 16 * 15 * 127 = 30480 before the last two are added, which fits 16 bits.
template <bool vnni, int vectors>
FUSEWHEEL_INLINE Vec<float> folded_products(const Halves<vectors>& codes, const int8_t* digits,
                                            Integers start) {
  using Sums = std::conditional_t<vnni, Integers, Shorts>;
  Sums sums[vectors] = {};
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) {
    const Bytes with_low = load_bytes(digits + 2 * v * kBytes);
    const Bytes with_high = load_bytes(digits + (2 * v + 1) * kBytes);
    if constexpr (vnni) {
      add_products(sums[v], codes.low[v], with_low);
      add_products(sums[v], codes.high[v], with_high);
    } else {
      sums[v] = multiply_pairs(codes.low[v], with_low) + multiply_pairs(codes.high[v], with_high);
    }
  }
  Sums folded;
  if constexpr (vectors == 1) {
    // Where a block is not, the step is zero.
    folded = fold_pieces(sums[0]);
  } else {
    folded = fold_pieces(sums[0], sums[1], sums[2], sums[3]);
  }
  if constexpr (vnni) {
    return from_codes(start + folded);
  } else {
    return from_codes(start + add_pairs(folded));
  }
}

// A sum over as many blocks of a row as there are lanes, of which `live` are there, from `block` on:
//   scale * step * ((codes - middle) . digits) + (zero + middle * scale) * sum
// The scale and the step each meet the products: multiplied by each other they may be too small for a normal
// number.
template <int planes, bool vnni, typename S, typename Live>
FUSEWHEEL_INLINE Vec<float> add_blocks(const CodeRows<S>& row, const DigitRow& a, int64_t block,
                                       Live live, Vec<float> total) {
  const int8_t* digits = a.digits + block / kVectorBlocks * (2 * planes * kBytes);
  const Halves<kVectorsOf<Live>> codes(row.codes + block * (kInt4Block / 2), live);
  const Vec<float> scale = load(row.scales + block, live);
  total += (load(row.zeros + block, live) + scale * float{kCodeMiddle}) * load(a.sums + block);
  if constexpr (planes == 1) {
    const BlockLanes of_a = block_lanes(a, block);
    return total + folded_products<vnni>(codes, digits, of_a.start) * of_a.steps * by_pieces(scale);
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectorsOf<Live> && v * kVectorBlocks < live; ++v) {
    const int64_t lane = block * kBlockLanes + v * kLanes<float>;
    total += digit_products<planes, vnni>(codes.low[v], codes.high[v],
                                          digits + v * (2 * planes * kBytes), a.start + lane) *
             load(a.steps + lane) * repeat_by_four(scale, v);
  }
  return total;
}

// Calls chunk(block, live) for all blocks of a row, as many at a time as there are lanes.
template <typename Chunk>
FUSEWHEEL_INLINE void for_each_chunk(int64_t blocks, Chunk chunk) {
  constexpr int lanes = kLanes<float>;
  int64_t block = 0;
  for (; block + lanes <= blocks; block += lanes) {
    chunk(block, Constant<lanes>{});
  }
  if (blocks - block > kVectorBlocks) {
    chunk(block, blocks - block);
  } else if (block < blocks) {
    chunk(block, OneVector{blocks - block});
  }
}

// Asks for `live` blocks that come `ahead` blocks behind those of a row that is read by itself.
template <typename S>
FUSEWHEEL_INLINE void ask_later(const CodeRows<S>& row, int64_t block, int64_t live,
                                int64_t ahead = kBlocksAhead) {
  prefetch(row.codes + (block + ahead) * (kInt4Block / 2), 0, live * (kInt4Block / 2));
  if (block * sizeof(S) % kLineBytes == 0) {
    __builtin_prefetch(row.scales + block + ahead);
    __builtin_prefetch(row.zeros + block + ahead);
  }
}

// Asks for blocks of the row that is `rows` rows behind row `r`: no line twice, and never many at once, or
// all wait for one another.
template <int rows, typename S>
FUSEWHEEL_INLINE void ask_next(const CodeRows<S>& weight, const CodeRows<S>& row, int r, int64_t block) {
  constexpr int lanes = kLanes<float>;
  prefetch(row.codes + block * (kInt4Block / 2) + rows * weight.stride, 0, lanes * (kInt4Block / 2));
  const int64_t ahead = rows * (weight.blocks + block) + r * lanes;
  if (r * lanes * sizeof(S) % kLineBytes == 0) {
    __builtin_prefetch(weight.scales + ahead);
    __builtin_prefetch(weight.zeros + ahead);
  }
}

// `rows` rows of the weight times a, side by side or in turn: the sums of all blocks of each.
template <int rows, int planes, bool vnni, typename S>
__attribute__((noinline)) void dot_digits(const CodeRows<S>& weight, const DigitRow& a, bool in_turn,
                                          float* out) {
  constexpr int lanes = kLanes<float>;
  Vec<float> totals[rows] = {};
  if (in_turn || rows == 1) {
    for (int r = 0; r < rows; ++r) {
      const CodeRows<S> row = row_of(weight, r);
      Vec<float> total = {};
      for_each_chunk(weight.blocks, [&](int64_t block, auto live) FUSEWHEEL_INLINED {
        ask_later(row, block, live);
        total = add_blocks<planes, vnni>(row, a, block, live, total);
      });
      totals[r] = total;
    }
  } else {
    for_each_chunk(weight.blocks, [&](int64_t block, auto live) FUSEWHEEL_INLINED {
      for (int r = 0; r < rows; ++r) {
        const CodeRows<S> row = row_of(weight, r);
        ask_next<rows>(weight, row, r, block);
        totals[r] = add_blocks<planes, vnni>(row, a, block, live, totals[r]);
      }
    });
  }
  if constexpr (rows == lanes) {
    store(out, sums_of<float>(totals));
  } else {
    for (int r = 0; r < rows; ++r) {
      out[r] = sum<float>(totals[r]);
    }
  }
}

template <int rows, bool vnni, typename S>
FUSEWHEEL_INLINE void dot_planes(const CodeRows<S>& weight, const DigitRow& a, bool in_turn,
                                 float* out) {
  switch (a.planes) {
    case 1: return dot_digits<rows, 1, vnni>(weight, a, in_turn, out);
    case 2: return dot_digits<rows, 2, vnni>(weight, a, in_turn, out);
    default: return dot_digits<rows, 3, vnni>(weight, a, in_turn, out);
  }
}

template <int rows, typename S>
FUSEWHEEL_INLINE void dot_digits(const CodeRows<S>& weight, const DigitRow& a, bool in_turn,
                                 float* out) {
  if (choices().vnni) {
    dot_planes<rows, true>(weight, a, in_turn, out);
  } else {
    dot_planes<rows, false>(weight, a, in_turn, out);
  }
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
