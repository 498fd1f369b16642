// Sums and maxima over the threads of a row: blockDim.x of them, a multiple of a warp. A block has
// blockDim.y rows.
#pragma once

#include "launch.h"

namespace fusewheel {

struct Plus {
  template <typename A>
  __device__ A operator()(A a, A b) const {
    return a + b;
  }
};

// NaN is larger than every number.
struct Larger {
  template <typename A>
  __device__ A operator()(A a, A b) const {
    return a > b || a != a ? a : b;
  }
};

template <typename Combine, typename A>
__device__ inline A warp_reduce(A value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = Combine()(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// Every thread of the block must call it; each gets the result of its row. The order of the
// additions depends on the block's shape alone, so the same call gives the same bits.
template <typename Combine, typename A>
__device__ inline A row_reduce(A value) {
  value = warp_reduce<Combine>(value);
  const unsigned warps = blockDim.x / kWarp;
  if (warps == 1) {
    return value;
  }
  __shared__ A results[kWarp];
  const unsigned first = threadIdx.y * warps;
  __syncthreads();  // an earlier row's results have been read
  if (threadIdx.x % kWarp == 0) {
    results[first + threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  value = results[first];
  for (unsigned i = 1; i < warps; ++i) {
    value = Combine()(value, results[first + i]);
  }
  return value;
}

template <typename A>
__device__ inline A warp_sum(A value) {
  return warp_reduce<Plus>(value);
}
template <typename A>
__device__ inline A row_sum(A value) {
  return row_reduce<Plus>(value);
}
template <typename A>
__device__ inline A row_max(A value) {
  return row_reduce<Larger>(value);
}

constexpr int kMaxRowThreads = 512;

// The block of a kernel that gives each row of `items` a row of threads; short rows share a block
// of about `threads`.
inline dim3 row_block(int64_t items, unsigned threads) {
  unsigned x = kWarp;
  while (x < items && x < kMaxRowThreads) {
    x *= 2;
  }
  return {x, x < threads ? threads / x : 1, 1};
}

}  // namespace fusewheel
