// One row of a against codes: the scales are applied once a group, not once an element.
#pragma once

#include "decode.h"

namespace fusewheel::FUSEWHEEL_ISA {

// The dot product of one row of 4-bit codes: sum over groups of
// scale * (codes . a) + zero * (sum of a).
FUSEWHEEL_INLINE float dot_int4(const LinearWeight& weight, int64_t row, const float* a,
                                const float* group_sums) {
  constexpr int lanes = kLanes<float>;
  const uint8_t* codes = static_cast<const uint8_t*>(weight.data) + row * weight.stride;
  Vec<float> total = {};
  Vec<float> offset = {};
  for (int64_t first = 0; first < weight.groups; first += kMostGroups) {
    const int64_t groups =
        weight.groups - first < kMostGroups ? weight.groups - first : kMostGroups;
    float scales[kMostGroups];
    float zeros[kMostGroups];
    widen_all(weight.scale_dtype, weight.scales, row * weight.groups + first, groups, scales);
    widen_all(weight.scale_dtype, weight.zeros, row * weight.groups + first, groups, zeros);
    for_each_vector<float>(groups, [&](int64_t g, int64_t live) {
      offset += load(zeros + g, live) * load(group_sums + first + g, live);
    });
    for (int64_t g = 0; g < groups; ++g) {
      Vec<float> low = {};
      Vec<float> high = {};
      for (int64_t k = 0; k < weight.group_size; k += kInt4Block) {
        for (int j = 0; j < kInt4Block / 2; j += lanes) {
          const Integers pair = load_codes(codes + j);
          low += from_codes(pair & 15) * load(a + j);
          high += from_codes(pair >> 4) * load(a + kInt4Block / 2 + j);
        }
        codes += kInt4Block / 2;
        a += kInt4Block;
      }
      total += (low + high) * scales[g];
    }
  }
  return sum<float>(total + offset);
}

FUSEWHEEL_INLINE float dot_int8(const LinearWeight& weight, int64_t row, const float* a) {
  constexpr int lanes = kLanes<float>;
  const int8_t* codes = static_cast<const int8_t*>(weight.data) + row * weight.stride;
  float total = 0;
  Vec<float> totals = {};
  for (int64_t g = 0; g < weight.groups; ++g) {
    float scale;
    widen_all(weight.scale_dtype, weight.scales, row * weight.groups + g, 1, &scale);
    Vec<float> sums[4] = {};
    int64_t k = 0;
    for (; k + 4 * lanes <= weight.group_size; k += 4 * lanes) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        sums[j] += from_codes(load_codes(codes + k + j * lanes)) * load(a + k + j * lanes);
      }
    }
    float rest = 0;
    for (; k < weight.group_size; ++k) {
      rest += static_cast<float>(codes[k]) * a[k];
    }
    totals += ((sums[0] + sums[1]) + (sums[2] + sums[3])) * scale;
    total += rest * scale;
    codes += weight.group_size;
    a += weight.group_size;
  }
  return total + sum<float>(totals);
}

}  // namespace fusewheel::FUSEWHEEL_ISA
