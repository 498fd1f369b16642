// One row of a against 4-bit codes, in integers: 32 products an instruction instead of 8 (AVX2).
//
// Each block of 32 elements of a is a step times whole numbers, written as digits of 8 bits. Sums of
// products within a block are exact then, and how exact the elements are depends on the digits:
//   3  the largest keeps all bits of a float32
//   2  for activations of 16 bits: an element errs by at most 2^-11 of the mean of its block
//   1  activations rounded to int8, where that is asked for
#pragma once

#include "../simd/transpose.h"
#include "rounding.h"
#include "streams.h"

namespace fusewheel::FUSEWHEEL_ISA {

FUSEWHEEL_INLINE int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

#if defined(__AVX2__)

constexpr int kMostDigits = 3;
// Blocks of codes in a vector.
constexpr int kVectorBlocks = kBytes / (kInt4Block / 2);

// A row of a by digits. For each kVectorBlocks blocks, `planes` pairs of vectors, the most
// significant digit first: what meets the low halves of the codes, what meets the high halves.
struct DigitRow {
  int8_t* digits;
  float* steps;  // a block each, zeros up to a whole vector of codes
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
  for (int64_t block = blocks; block < padded; ++block) {
    row.steps[block] = 0;
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

// Writes the digits of a row and the sum of every block.
FUSEWHEEL_INLINE void to_digits(const float* a, int64_t blocks, const DigitRow& row, float* sums) {
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
    sums[block] = sum<float>(__builtin_convertvector(total, Vec<float>)) * rounding.step;
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

// A row of a, and what `rows` rows of the weight multiply it with.
struct DigitProduct {
  const uint8_t* codes;
  int64_t stride;
  const float* scaled;  // steps of a times scales of the weight, padded_blocks a row
  const float* zeros;   // [rows, groups]
  const float* sums;    // of the groups of a
  int64_t blocks;
  int64_t padded;
  int64_t groups;
};

// out[r] = sum over blocks of scaled * (codes . digits) + sum over groups of zero * sum
template <int rows, int planes>
__attribute__((noinline)) void dot_digits(const DigitProduct& product, const int8_t* digits,
                                          float* out) {
  const uint8_t* codes = product.codes;
  const int64_t stride = product.stride;
  Vec<float> totals[rows] = {};
  const auto step = [&](int64_t block, auto live) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const uint8_t* from = codes + r * stride;
      __builtin_prefetch(from + rows * stride);
      const Bytes pair = load_bytes(from, live);
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
      totals[r] += from_codes(whole) * repeat_by_four(product.scaled + r * product.padded + block);
    }
    codes += kBytes;
    digits += 2 * planes * kBytes;
  };
  int64_t block = 0;
  for (; block + kVectorBlocks <= product.blocks; block += kVectorBlocks) {
    step(block, kBytes);
  }
  if (block < product.blocks) {
    step(block, (product.blocks - block) * (kInt4Block / 2));
  }
  for_each_vector<float>(product.groups, [&](int64_t g, int64_t live) {
    const Vec<float> sums = load(product.sums + g, live);
    for (int r = 0; r < rows; ++r) {
      totals[r] += load(product.zeros + r * product.groups + g, live) * sums;
    }
  });
  if constexpr (rows == kLanes<float>) {
    store(out, sums_of<float>(totals));
  } else {
    for (int r = 0; r < rows; ++r) {
      out[r] = sum<float>(totals[r]);
    }
  }
}

// A row of the weight's scales, by blocks and times the steps of a.
FUSEWHEEL_INLINE void scale_steps(const float* scales, const float* steps, int64_t blocks,
                                  int64_t group_blocks, float* to) {
  if (group_blocks == 1) {
    for_each_vector<float>(blocks, [&](int64_t i, int64_t live) {
      store(to + i, load(scales + i, live) * load(steps + i, live));  // `to` is padded
    });
    return;
  }
  for (int64_t i = 0; i < blocks; i += group_blocks, ++scales) {
    for (int64_t j = i; j < i + group_blocks; ++j) {
      to[j] = *scales * steps[j];
    }
  }
}

// `rows` rows of the weight from `begin`; `scaled` is scratch memory.
template <int rows>
FUSEWHEEL_INLINE void dot_digits(const LinearWeight& weight, int64_t begin, const DigitRow& row,
                                 const float* scales, const float* zeros, const float* sums,
                                 float* scaled, float* out) {
  const int64_t blocks = weight.columns / kInt4Block;
  const int64_t padded = padded_blocks(weight);
  for (int r = 0; r < rows; ++r) {
    float* to = scaled + r * padded;
    scale_steps(scales + r * weight.groups, row.steps, blocks, weight.group_size / kInt4Block, to);
    for (int64_t i = blocks; i < round_up(blocks, kVectorBlocks); ++i) {
      to[i] = 0;
    }
  }
  const DigitProduct product{
      static_cast<const uint8_t*>(weight.data) + begin * weight.stride, weight.stride, scaled,
      zeros, sums, blocks, padded, weight.groups};
  switch (row.planes) {
    case 1: return dot_digits<rows, 1>(product, row.digits, out);
    case 2: return dot_digits<rows, 2>(product, row.digits, out);
    default: return dot_digits<rows, 3>(product, row.digits, out);
  }
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
