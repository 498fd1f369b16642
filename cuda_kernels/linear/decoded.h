// How decoded weights are written: as numbers, or each as a sum of two in bfloat16.
#pragma once

#include "common/vector.h"

namespace fusewheel {
namespace {

// How many a thread writes at once.
constexpr int kFloats = kLanes<float>;
constexpr int kSums = kLanes<__nv_bfloat16>;

template <typename A>
__device__ void write_weights(const A (&weights)[kLanes<A>], void* to, void*, int64_t at) {
  store(static_cast<A*>(to) + at, weights);
}

// The first ones are cut off, the second ones rounded: 16 bits in all.
__device__ inline void write_weights(const float (&weights)[kSums], void* to, void* rest,
                                     int64_t at) {
  float first[kSums];
  float second[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    first[i] = cut(weights[i]);
    // Of an infinity, which is equal too, the difference would be NaN.
    second[i] = weights[i] == first[i] ? 0 : weights[i] - first[i];
  }
  store(static_cast<__nv_bfloat16*>(to) + at, first);
  store(static_cast<__nv_bfloat16*>(rest) + at, second);
}

}  // namespace
}  // namespace fusewheel
