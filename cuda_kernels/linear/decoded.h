// How decoded weights are written: as numbers, or each as a sum of parts in bfloat16.
#pragma once

#include "args.h"
#include "common/vector.h"

namespace fusewheel {
namespace {

// How many a thread writes at once.
constexpr int kFloats = kLanes<float>;
constexpr int kSums = kLanes<__nv_bfloat16>;

template <typename A>
__device__ void write_weights(const A (&weights)[kLanes<A>], void* to, int64_t, int64_t at) {
  store(static_cast<A*>(to) + at, weights);
}

// Each part is cut off what the parts before have left of the weight. The last one leaves nothing but
// digits below 2^-133, which bfloat16 does not have.
__device__ inline void write_weights(const float (&weights)[kSums], void* to, int64_t step,
                                     int64_t at) {
  float left[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    left[i] = weights[i];
  }
#pragma unroll
  for (int part = 0; part < kWeightParts; ++part) {
    float own[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      own[i] = cut(left[i]);
      // Of an infinity, which is equal too, the difference would be NaN.
      left[i] = left[i] == own[i] ? 0 : left[i] - own[i];
    }
    store(reinterpret_cast<__nv_bfloat16*>(static_cast<char*>(to) + part * step) + at, own);
  }
}

}  // namespace
}  // namespace fusewheel
