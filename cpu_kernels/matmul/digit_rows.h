// A few rows of a, rounded to int8, against 4-bit codes: each code is taken apart once for all of them,
// by VNNI.
#pragma once

#include "digits.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// What the lanes of a vector of codes meet, for `count` rows of a.
template <int count>
struct DigitLanes {
  Vec<float> steps[count][4];
  Integers start[count][4];

  FUSEWHEEL_INLINE DigitLanes(const DigitRow* a, int64_t block) {
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) {
      const Vec<float> row = load(a[i].steps + block);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        steps[i][v] = repeat_by_four(row, v);
        __builtin_memcpy(&start[i][v], a[i].start + block * kBlockLanes + v * kLanes<float>,
                         sizeof(Integers));
      }
    }
  }
};

// `rows` rows of the weight times `count` rows of a: out[i * stride + r].
template <int rows, int count>
__attribute__((noinline)) void dot_digit_rows(const CodeRows<float>& weight, const DigitRow* a,
                                              float* out, int64_t stride) {
  constexpr int lanes = kLanes<float>;
  Vec<float> totals[rows][count] = {};
  for (int64_t block = 0; block < weight.blocks; block += lanes) {
    const int64_t live = weight.blocks - block < lanes ? weight.blocks - block : lanes;
    const DigitLanes<count> digits(a, block);
    const int64_t place = block / kVectorBlocks * (2 * kBytes);
    for (int r = 0; r < rows; ++r) {
      const uint8_t* codes = weight.codes + r * weight.stride + block * (kInt4Block / 2);
      prefetch(codes + rows * weight.stride, 0, lanes * (kInt4Block / 2));
      const Vec<float> scale = load(weight.scales + r * weight.blocks + block, live);
      const Vec<float> zero = load(weight.zeros + r * weight.blocks + block, live);
      const Vec<float> middle = zero + scale * float{kCodeMiddle};
      Vec<float> total[count];
#pragma GCC unroll 4
      for (int i = 0; i < count; ++i) {
        total[i] = totals[r][i] + middle * load(a[i].sums + block);
      }
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const int64_t left = live - v * kVectorBlocks;
        if (left <= 0) {
          break;
        }
        const Bytes pair = load_bytes(codes + v * kBytes, left * (kInt4Block / 2));
        const Bytes low = low_half(pair);
        const Bytes high = high_half(pair);
        const Vec<float> scales = repeat_by_four(scale, v);
#pragma GCC unroll 4
        for (int i = 0; i < count; ++i) {
          const int8_t* own = a[i].digits + place + v * (2 * kBytes);
          Integers products = digits.start[i][v];
          add_products(products, low, load_bytes(own));
          add_products(products, high, load_bytes(own + kBytes));
          total[i] += from_codes(products) * (scales * digits.steps[i][v]);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < count; ++i) {
        totals[r][i] = total[i];
      }
    }
  }
  // The lanes of as many vectors as there are lanes are added up together.
  constexpr int vectors = (rows * count + lanes - 1) / lanes * lanes;
  Vec<float> flat[vectors] = {};
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < count; ++i) {
      flat[i * rows + r] = totals[r][i];
    }
  }
  float sums[vectors];
  for (int i = 0; i < vectors; i += lanes) {
    store(sums + i, sums_of<float>(flat + i));
  }
  for (int i = 0; i < count; ++i) {
    __builtin_memcpy(out + i * stride, sums + i * rows, rows * sizeof(float));
  }
}

// `rows` rows of the weight from `begin`. `scales` and `zeros` are scratch memory for those of blocks.
template <int rows>
FUSEWHEEL_INLINE void dot_digit_rows(const LinearWeight& weight, int64_t begin, const DigitRow* a,
                                     int64_t count, float* scales, float* zeros, float* out,
                                     int64_t stride) {
  const int64_t blocks = weight.columns / kInt4Block;
  const int64_t group_blocks = weight.group_size / kInt4Block;
  const int64_t first = begin * weight.groups;
  const int64_t groups = rows * weight.groups;
  if (group_blocks == 1) {
    widen_all(weight.scale_dtype, weight.scales, first, groups, scales);
    widen_all(weight.scale_dtype, weight.zeros, first, groups, zeros);
  } else {
    spread_groups(weight.scale_dtype, weight.scales, first, groups, group_blocks, scales);
    spread_groups(weight.scale_dtype, weight.zeros, first, groups, group_blocks, zeros);
  }
  const CodeRows<float> codes = {
      static_cast<const uint8_t*>(weight.data) + begin * weight.stride, weight.stride, scales, zeros,
      blocks};
  switch (count) {
    case 2: return dot_digit_rows<rows, 2>(codes, a, out, stride);
    case 3: return dot_digit_rows<rows, 3>(codes, a, out, stride);
    default: return dot_digit_rows<rows, 4>(codes, a, out, stride);
  }
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
