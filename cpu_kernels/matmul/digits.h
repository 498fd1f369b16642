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

#include "simd/transpose.h"
#include "rounding.h"
#include "streams.h"

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
  float* steps;  // a block each, zeros up to a whole vector
  float* sums;   // likewise: of the block's elements
  int32_t* offsets;  // kCodeMiddle times the elements that one lane of products sums, four a block
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

FUSEWHEEL_INLINE void clear_last(const DigitRow& row, int64_t blocks) {
  const int64_t padded = round_up(blocks, kVectorBlocks);
  if (padded > blocks) {
    const int64_t vector = row.planes * 2 * kBytes;
    __builtin_memset(row.digits + (padded / kVectorBlocks - 1) * vector, 0, vector);
  }
  for (int64_t block = blocks; block < round_up(blocks, kLanes<float>); ++block) {
    row.steps[block] = 0;
    row.sums[block] = 0;
    __builtin_memset(row.offsets + block * kBlockLanes, 0, kBlockLanes * sizeof(int32_t));
  }
}

// A lane sums products of four neighbouring codes in low halves and four in high halves.
FUSEWHEEL_INLINE void write_offsets(const int32_t* whole, int32_t* offsets) {
  for (int lane = 0; lane < kBlockLanes; ++lane) {
    int32_t sum = 0;
    for (int i = 0; i < 4; ++i) {
      sum += whole[4 * lane + i] + whole[kInt4Block / 2 + 4 * lane + i];
    }
    offsets[lane] = kCodeMiddle * sum;
  }
}

// Digits with which a row is as exact as its dtype; none where a block has no step: it holds an
// infinity or NaN, or nothing but numbers so small that the step's inverse overflows.
FUSEWHEEL_INLINE int digits_for(const float* a, int64_t blocks, Dtype dtype) {
  constexpr float kSmallest = 1e-30f;
  int digits = dtype == Dtype::kFloat32 ? kMostDigits : 2;
  for (int64_t i = 0; i < blocks; ++i) {
    const Block block = measure_block(a + i * kInt4Block);
    if (!is_finite(block) || (block.largest > 0 && block.largest < kSmallest)) {
      return 0;
    }
    if (block.largest > 16 * block.mean) {
      digits = kMostDigits;  // one element outweighs the others
    }
  }
  return digits;
}

// Writes the digits of a row, the step and the sum of every block.
FUSEWHEEL_INLINE void to_digits(const float* a, int64_t blocks, const DigitRow& row) {
  constexpr int lanes = kLanes<float>;
  constexpr int vectors = kInt4Block / lanes;
  clear_last(row, blocks);
  // The first digit stays below 128 even where the product with the inverse is rounded up.
  const float whole_steps = row.planes == 1 ? 127.0f : row.planes == 2 ? 32512.0f : 8323072.0f;
  for (int64_t block = 0; block < blocks; ++block, a += kInt4Block) {
    const Rounding rounding = round_block(measure_block(a), whole_steps);
    row.steps[block] = rounding.step;
    Integers whole[vectors];
    Integers total = {};
    for (int i = 0; i < vectors; ++i) {
      whole[i] = nearest(load(a + i * lanes) * rounding.inverse);
      total += whole[i];
    }
    row.sums[block] = sum<float>(__builtin_convertvector(total, Vec<float>)) * rounding.step;
    int32_t numbers[kInt4Block];
    __builtin_memcpy(numbers, whole, sizeof(numbers));
    write_offsets(numbers, row.offsets + block * kBlockLanes);
    for (int p = row.planes; p-- > 0;) {
      Integers digits[vectors];
      for (int i = 0; i < vectors; ++i) {
        digits[i] = take_digit(whole[i]);
      }
      int8_t bytes[kInt4Block];
      store_bytes(bytes, digits);
      __builtin_memcpy(digit_place(row, block, p, 0), bytes, kInt4Block / 2);
      __builtin_memcpy(digit_place(row, block, p, 1), bytes + kInt4Block / 2, kInt4Block / 2);
    }
  }
}

// Rows of the weight, side by side: codes, and a scale and a zero a block.
template <typename S>
struct CodeRows {
  const uint8_t* codes;
  int64_t stride;
  const S* scales;
  const S* zeros;
  int64_t blocks;
};

// One vector of codes, from their middle, times the digits of a.
template <int planes>
FUSEWHEEL_INLINE Vec<float> digit_products(Bytes pair, const int8_t* digits,
                                           const int32_t* offsets) {
  const Bytes low = low_half(pair);
  const Bytes high = high_half(pair);
  Shorts sums[planes];
#pragma GCC unroll 3
  for (int p = 0; p < planes; ++p) {
    sums[p] = multiply_pairs(low, load_bytes(digits + 2 * p * kBytes)) +
              multiply_pairs(high, load_bytes(digits + (2 * p + 1) * kBytes));
  }
  Integers whole = add_pairs(sums[0], planes == 1 ? 1 : 256);
  if constexpr (planes >= 2) {
    whole += add_pairs(sums[1]);
  }
  if constexpr (planes == 3) {
    whole = (whole << 8) + add_pairs(sums[2]);
  }
  Integers offset;
  __builtin_memcpy(&offset, offsets, sizeof(offset));
  return from_codes(whole - offset);
}

// out[r] = sum over blocks of scale * step * ((codes - middle) . digits)
//                           + (zero + middle * scale) * sum
template <int rows, int planes, typename S>
__attribute__((noinline)) void dot_digits(const CodeRows<S>& weight, const DigitRow& a,
                                          float* out) {
  constexpr int lanes = kLanes<float>;
  Vec<float> totals[rows] = {};
  // As many blocks as there are lanes: one vector of scales serves four of codes.
  const auto chunk = [&](int64_t block, auto live) {
    const Vec<float> steps = load(a.steps + block);
    const Vec<float> sums = load(a.sums + block);
    const int8_t* digits = a.digits + block / kVectorBlocks * (2 * planes * kBytes);
    const uint8_t* codes = weight.codes + block * (kInt4Block / 2);
    const int32_t* offsets = a.offsets + block * kBlockLanes;
    const S* scales = weight.scales + block;
    const S* zeros = weight.zeros + block;
    for (int r = 0; r < rows; ++r) {
      // The next rows: no line twice, and never many at once, or all wait for one another.
      prefetch(codes + rows * weight.stride, 0, lanes * (kInt4Block / 2));
      const int64_t ahead = rows * (weight.blocks + block) + r * lanes;
      if (r * lanes * sizeof(S) % 64 == 0) {
        __builtin_prefetch(weight.scales + ahead);
        __builtin_prefetch(weight.zeros + ahead);
      }
      const Vec<float> scale = load(scales, live);
      const Vec<float> scaled = scale * steps;
      Vec<float> total = totals[r] + (load(zeros, live) + scale * float{kCodeMiddle}) * sums;
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const int64_t left = live - v * kVectorBlocks;
        if (left > 0) {
          const Bytes pair = load_bytes(codes + v * kBytes, left * (kInt4Block / 2));
          total += digit_products<planes>(pair, digits + v * (2 * planes * kBytes),
                                          offsets + v * kLanes<float>) *
                   repeat_by_four(scaled, v);
        }
      }
      totals[r] = total;
      codes += weight.stride;
      scales += weight.blocks;
      zeros += weight.blocks;
    }
  };
  int64_t block = 0;
  for (; block + lanes <= weight.blocks; block += lanes) {
    chunk(block, Constant<lanes>{});
  }
  if (block < weight.blocks) {
    chunk(block, weight.blocks - block);
  }
  if constexpr (rows == lanes) {
    store(out, sums_of<float>(totals));
  } else {
    for (int r = 0; r < rows; ++r) {
      out[r] = sum<float>(totals[r]);
    }
  }
}

template <int rows, typename S>
FUSEWHEEL_INLINE void dot_digits(const CodeRows<S>& weight, const DigitRow& a, float* out) {
  switch (a.planes) {
    case 1: return dot_digits<rows, 1>(weight, a, out);
    case 2: return dot_digits<rows, 2>(weight, a, out);
    default: return dot_digits<rows, 3>(weight, a, out);
  }
}

// Numbers of groups as numbers of blocks.
FUSEWHEEL_INLINE void spread_groups(Dtype dtype, const void* from, int64_t begin, int64_t groups,
                                    int64_t group_blocks, float* to) {
  for (int64_t g = 0; g < groups; ++g) {
    float number = 0;
    widen_all(dtype, from, begin + g, 1, &number);
    for (int64_t i = 0; i < group_blocks; ++i) {
      *to++ = number;
    }
  }
}

// `rows` rows of the weight from `begin`. `scales` and `zeros` are scratch memory for groups of
// several blocks.
template <int rows>
FUSEWHEEL_INLINE void dot_digits(const LinearWeight& weight, int64_t begin, const DigitRow& a,
                                 float* scales, float* zeros, float* out) {
  const uint8_t* codes = static_cast<const uint8_t*>(weight.data) + begin * weight.stride;
  const int64_t blocks = weight.columns / kInt4Block;
  const int64_t first = begin * weight.groups;
  if (blocks == weight.groups) {
    return for_dtype(weight.scale_dtype, [&](auto zero) {
      using S = decltype(zero);
      if constexpr (sizeof(Accumulate<S>) == sizeof(float)) {
        dot_digits<rows, S>({codes, weight.stride, static_cast<const S*>(weight.scales) + first,
                             static_cast<const S*>(weight.zeros) + first, blocks},
                            a, out);
      }
    });
  }
  const int64_t group_blocks = weight.group_size / kInt4Block;
  spread_groups(weight.scale_dtype, weight.scales, first, rows * weight.groups, group_blocks,
                scales);
  spread_groups(weight.scale_dtype, weight.zeros, first, rows * weight.groups, group_blocks, zeros);
  dot_digits<rows, float>({codes, weight.stride, scales, zeros, blocks}, a, out);
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
