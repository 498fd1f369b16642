// One row of a against codes: a scale is applied once a group, not once an element.
#pragma once

#include "decode.h"

namespace fusewheel::FUSEWHEEL_ISA {

// How far ahead of the codes in use the next are asked for: further than one page, which is where
// the hardware's own prefetching stops.
constexpr int64_t kAhead = 2048;

// What 4-bit codes want of a row: its sum over each group, for the zeros, and a copy in which the
// elements that meet the high half of a byte are divided by 16. So the half needs no shift.
FUSEWHEEL_INLINE void prepare_int4(const LinearWeight& weight, const float* a, float* sums,
                                   float* prepared) {
  constexpr int lanes = kLanes<float>;
  constexpr int half = kInt4Block / 2;
  for (int64_t g = 0; g < weight.groups; ++g) {
    Vec<float> total = {};
    for (int64_t k = g * weight.group_size; k < (g + 1) * weight.group_size; k += kInt4Block) {
      for (int j = 0; j < half; j += lanes) {
        const Vec<float> low = load(a + k + j);
        const Vec<float> high = load(a + k + half + j);
        total += low + high;
        store(prepared + k + j, low);
        store(prepared + k + half + j, high * 0.0625f);
      }
    }
    sums[g] = sum<float>(total);
  }
}

// sum over groups of scale * (codes . a) for `rows` neighbouring rows of 4-bit codes, `blocks`
// blocks a group; `a` is prepared.
template <int rows, int blocks>
__attribute__((noinline)) void dot_groups(const uint8_t* codes, int64_t stride, const float* a,
                                          const float* scales, int64_t groups, float* out) {
  constexpr int lanes = kLanes<float>;
  constexpr int half = kInt4Block / 2;
  Vec<float> totals[rows] = {};
  for (int64_t g = 0; g < groups; ++g) {
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const uint8_t* from = codes + r * stride;
      __builtin_prefetch(from + kAhead);
      Vec<float> dot = {};
#pragma GCC unroll 4
      for (int b = 0; b < blocks; ++b) {
#pragma GCC unroll 4
        for (int j = 0; j < half; j += lanes) {
          const Integers pair = load_codes(from + b * half + j);
          dot += from_codes(pair & 15) * load(a + b * kInt4Block + j);
          dot += from_codes(pair & 240) * load(a + b * kInt4Block + half + j);
        }
      }
      totals[r] += dot * splat(scales[r * groups + g]);
    }
    codes += blocks * half;
    a += blocks * kInt4Block;
  }
  for (int r = 0; r < rows; ++r) {
    out[r] = sum<float>(totals[r]);
  }
}

template <int rows>
FUSEWHEEL_INLINE void dot_int4(const LinearWeight& weight, int64_t row, const float* a,
                               const float* scales, float* out) {
  const uint8_t* codes = static_cast<const uint8_t*>(weight.data) + row * weight.stride;
  switch (weight.group_size / kInt4Block) {
    case 1: return dot_groups<rows, 1>(codes, weight.stride, a, scales, weight.groups, out);
    case 2: return dot_groups<rows, 2>(codes, weight.stride, a, scales, weight.groups, out);
    default: return dot_groups<rows, 4>(codes, weight.stride, a, scales, weight.groups, out);
  }
}

// Likewise for 8-bit codes, `size` of them a group.
template <int rows>
__attribute__((noinline)) void dot_groups(const int8_t* codes, int64_t stride, const float* a,
                                          const float* scales, int64_t groups, int64_t size,
                                          float* out) {
  constexpr int lanes = kLanes<float>;
  Vec<float> totals[rows] = {};
  float rest[rows] = {};
  for (int64_t g = 0; g < groups; ++g) {
    Vec<float> sums[rows][2] = {};
    int64_t k = 0;
    for (; k + 2 * lanes <= size; k += 2 * lanes) {
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        const int8_t* from = codes + r * stride + k;
        __builtin_prefetch(from + kAhead);
        sums[r][0] += from_codes(load_codes(from)) * load(a + k);
        sums[r][1] += from_codes(load_codes(from + lanes)) * load(a + k + lanes);
      }
    }
    for (int r = 0; r < rows; ++r) {
      float tail = 0;
      for (int64_t i = k; i < size; ++i) {
        tail += static_cast<float>(codes[r * stride + i]) * a[i];
      }
      rest[r] += tail * scales[r * groups + g];
      totals[r] += (sums[r][0] + sums[r][1]) * splat(scales[r * groups + g]);
    }
    codes += size;
    a += size;
  }
  for (int r = 0; r < rows; ++r) {
    out[r] = sum<float>(totals[r]) + rest[r];
  }
}

template <int rows>
FUSEWHEEL_INLINE void dot_int8(const LinearWeight& weight, int64_t row, const float* a,
                               const float* scales, float* out) {
  const int8_t* codes = static_cast<const int8_t*>(weight.data) + row * weight.stride;
  dot_groups<rows>(codes, weight.stride, a, scales, weight.groups, weight.group_size, out);
}

// sum over groups of zero * (sum of a)
FUSEWHEEL_INLINE float dot_zeros(const float* zeros, const float* group_sums, int64_t groups) {
  Vec<float> total = {};
  float rest = 0;
  int64_t g = 0;
  for (; g + kLanes<float> <= groups; g += kLanes<float>) {
    total += load(zeros + g) * load(group_sums + g);
  }
  for (; g < groups; ++g) {
    rest += zeros[g] * group_sums[g];
  }
  return sum<float>(total) + rest;
}

// Numbers of scratch that dot_codes needs for `rows` rows of a weight: scales and zeros, and a
// prepared row of a with its sums.
FUSEWHEEL_INLINE int64_t dot_codes_scratch(const LinearWeight& weight, int64_t rows) {
  return weight.groups * (2 * rows + 1) + weight.columns;
}

template <int rows>
FUSEWHEEL_INLINE void dot_codes(const LinearWeight& weight, int64_t row, const float* a,
                                const float* prepared, const float* scales, float* out) {
  if (weight.kind == WeightKind::kInt4) {
    dot_int4<rows>(weight, row, prepared, scales, out);
  } else {
    dot_int8<rows>(weight, row, a, scales, out);
  }
}

// Rows [begin, begin + count) of a weight of codes times `a`; `prepared` is used by 4-bit codes.
FUSEWHEEL_INLINE void dot_codes(const LinearWeight& weight, int64_t begin, int64_t count,
                                const float* a, const float* sums, const float* prepared,
                                float* scratch, float* out) {
  const int64_t groups = weight.groups;
  float* scales = scratch;
  float* zeros = scratch + groups * count;
  widen_all(weight.scale_dtype, weight.scales, begin * groups, count * groups, scales);
  constexpr int together = 4;
  int64_t row = 0;
  for (; row + together <= count; row += together) {
    dot_codes<together>(weight, begin + row, a, prepared, scales + row * groups, out + row);
  }
  for (; row < count; ++row) {
    dot_codes<1>(weight, begin + row, a, prepared, scales + row * groups, out + row);
  }
  if (weight.kind == WeightKind::kInt4) {
    widen_all(weight.scale_dtype, weight.zeros, begin * groups, count * groups, zeros);
    for (row = 0; row < count; ++row) {
      out[row] += dot_zeros(zeros + row * groups, sums, groups);
    }
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
