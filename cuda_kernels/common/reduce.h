// Sums and maxima over the threads of a row: blockDim.x of them, a power of two. A block has
// blockDim.y rows; short ones share a warp.
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

// Over each `lanes` neighbours of a warp: a power of two.
template <typename Combine, typename A>
__device__ inline A warp_reduce(A value, int lanes = kWarp) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    if (distance < lanes) {
      value = Combine()(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
  }
  return value;
}

// Every thread of the block must call it; each gets the result of its row. It is a barrier for the
// threads of a row: one may then write where another has read before. The order of the additions
// depends on the block's shape alone, so the same call gives the same bits.
template <typename Combine, typename A>
__device__ inline A row_reduce(A value) {
  value = warp_reduce<Combine>(value, static_cast<int>(blockDim.x));
  const unsigned warps = blockDim.x / kWarp;
  if (warps <= 1) {
    __syncwarp();
    return value;
  }
  __shared__ A results[kWarp];
  const unsigned first = threadIdx.y * warps;
  __syncthreads();  // an earlier row's results have been read
  if (threadIdx.x % kWarp == 0) {
    results[first + threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  // Every warp combines what all warps of its row have found.
  return warp_reduce<Combine>(results[first + (threadIdx.x & (warps - 1))], static_cast<int>(warps));
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

// How many blocks of so many threads a multiprocessor should run at a time: two halve the registers of
// a thread to 64. In double precision that would be too few.
template <typename T>
constexpr int kRowBlocks = sizeof(T) == sizeof(double) ? 1 : 2;

// The block of a kernel that gives each row of `items` a row of threads; short rows share a block
// of about `threads`, a multiple of a warp.
inline dim3 row_block(int64_t items, unsigned threads) {
  unsigned x = 1;
  while (x < items && x < kMaxRowThreads) {
    x *= 2;
  }
  return {x, x < threads ? threads / x : 1, 1};
}

}  // namespace fusewheel
