// What kernels that work row by row share: the vector width that rows allow, and sums over rows.
#pragma once

#include "pieces.h"
#include "reduce.h"
#include "vector.h"

namespace fusewheel {
namespace {

// Rows that need no more keep their sums in shared memory. Every GPU has so much for each block.
constexpr size_t kSharedBytes = 48 * 1024;

bool has_vectors(const void* rows, int64_t stride, int64_t lanes) {
  return is_aligned(rows) && stride % lanes == 0;
}

// Calls body(V) with the vector width that the rows of every operand allow. float64 is there for checks:
// one element at a time is less code.
template <typename T, typename Body>
void for_width(bool vectors, const Body& body) {
  if constexpr (sizeof(T) < sizeof(double)) {
    if (vectors) {
      return body(std::integral_constant<int, kLanes<T>>());
    }
  }
  body(std::integral_constant<int, 1>());
}

// Adds to sums of columns, which are kept in pieces.
template <int V, typename A>
__device__ inline void add_sums(A* sums, int64_t i, int64_t size, const A (&values)[V]) {
  A before[V];
  load_pieces(sums, i, size, before);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    before[k] += values[k];
  }
  store_pieces(sums, i, size, before);
}

// sums = the sum over `partials` [chunks, size], kept in pieces. The chunks of a column are added in a
// fixed order: each thread some, then the threads'.
constexpr int kColumnThreads = 16;

template <typename T>
struct ColumnSums {
  const Accumulate<T>* partials;
  T* sums;

  ColumnSums(const void* partials, void* sums)
      : partials(static_cast<const Accumulate<T>*>(partials)), sums(static_cast<T*>(sums)) {}
};

// One of them or both, by rows of blocks.
template <typename T, int V>
__global__ void __launch_bounds__(kWarp* kColumnThreads)
    sum_chunks(const ColumnSums<T> first, const ColumnSums<T> second, int64_t chunks, int64_t size) {
  using A = Accumulate<T>;
  __shared__ A shares[kColumnThreads][kWarp];
  const A* partials = blockIdx.y == 0 ? first.partials : second.partials;
  T* sums = blockIdx.y == 0 ? first.sums : second.sums;
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * kWarp; block < size;
       block += static_cast<int64_t>(gridDim.x) * kWarp) {
    const int64_t column = block + threadIdx.x;
    A sum = 0;
    if (column < size) {
#pragma unroll 4
      for (int64_t chunk = threadIdx.y; chunk < chunks; chunk += kColumnThreads) {
        sum += partials[chunk * size + column];
      }
    }
    shares[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < size) {
      for (int i = 1; i < kColumnThreads; ++i) {
        sum += shares[i][threadIdx.x];
      }
      narrow(sum, sums[element_at<V, A>(column, size)]);
    }
    __syncthreads();
  }
}

template <typename T, int V>
void launch_sum_chunks(const char* op, const ColumnSums<T>& first, const ColumnSums<T>& second,
                       unsigned count, int64_t chunks, int64_t size, Stream stream) {
  const dim3 grid(blocks_for(size, kWarp), count);
  launch(op, sum_chunks<T, V>, grid, dim3(kWarp, kColumnThreads), 0, stream, first, second, chunks,
         size);
}

}  // namespace
}  // namespace fusewheel
