// What kernels that work row by row share: the vector width that rows allow, and sums over rows.
#pragma once

#include "reduce.h"
#include "vector.h"

namespace fusewheel {
namespace {

// Rows that need no more keep their sums in shared memory. Every GPU has so much for each block.
constexpr size_t kSharedBytes = 48 * 1024;

bool has_vectors(const void* rows, int64_t stride, int64_t lanes) {
  return is_aligned(rows) && stride % lanes == 0;
}

// Calls body(V) with the vector width that the rows of every operand allow.
template <typename T, typename Body>
void for_width(bool vectors, const Body& body) {
  if (vectors) {
    body(std::integral_constant<int, kLanes<T>>());
  } else {
    body(std::integral_constant<int, 1>());
  }
}

// How sums of columns are kept: a vector of V columns in pieces of 128 bits, the first pieces of all
// vectors before their second ones. So lanes side by side meet memory side by side, also where the
// sums are wider than what they are sums of.
template <int V, typename A>
constexpr int kPiece = V == 1 ? 1 : kLanes<A>;

// The sums of the V columns from `i` on; a row has `size`.
template <int V, typename A>
__device__ inline void load_sums(const A* sums, int64_t i, int64_t size, A (&to)[V]) {
  constexpr int P = kPiece<V, A>;
#pragma unroll
  for (int k = 0; k < V; k += P) {
    A piece[P];
    load(sums + (k / P * (size / V) + i / V) * P, piece);
#pragma unroll
    for (int j = 0; j < P; ++j) {
      to[k + j] = piece[j];
    }
  }
}

template <int V, typename A>
__device__ inline void store_sums(A* sums, int64_t i, int64_t size, const A (&from)[V]) {
  constexpr int P = kPiece<V, A>;
#pragma unroll
  for (int k = 0; k < V; k += P) {
    A piece[P];
#pragma unroll
    for (int j = 0; j < P; ++j) {
      piece[j] = from[k + j];
    }
    store(sums + (k / P * (size / V) + i / V) * P, piece);
  }
}

template <int V, typename A>
__device__ inline void add_sums(A* sums, int64_t i, int64_t size, const A (&values)[V]) {
  A before[V];
  load_sums(sums, i, size, before);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    before[k] += values[k];
  }
  store_sums(sums, i, size, before);
}

// Which column the sum at `place` belongs to.
template <int V, typename A>
__device__ inline int64_t column_at(int64_t place, int64_t size) {
  constexpr int P = kPiece<V, A>;
  if constexpr (V == P) {
    return place;
  }
  const int64_t pieces = size / V;
  const int64_t k = place / P / pieces;
  return (place / P - k * pieces) * V + k * P + place % P;
}

// sums = the sum over `partials` [chunks, size], kept as above. The chunks of a column are added in a
// fixed order: each thread some, then the threads'.
constexpr int kColumnThreads = 16;

template <typename T, int V>
__global__ void __launch_bounds__(kWarp* kColumnThreads)
    sum_chunks(const Accumulate<T>* partials, T* sums, int64_t chunks, int64_t size) {
  using A = Accumulate<T>;
  __shared__ A shares[kColumnThreads][kWarp];
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
      narrow(sum, sums[column_at<V, A>(column, size)]);
    }
    __syncthreads();
  }
}

template <typename T, int V>
void launch_sum_chunks(const char* op, const void* partials, void* sums, int64_t chunks,
                       int64_t size, Stream stream) {
  launch(op, sum_chunks<T, V>, blocks_for(size, kWarp), dim3(kWarp, kColumnThreads), 0, stream,
         static_cast<const Accumulate<T>*>(partials), static_cast<T*>(sums), chunks, size);
}

}  // namespace
}  // namespace fusewheel
