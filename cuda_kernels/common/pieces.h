// How vectors are kept whose elements are wider than what they were read from.
#pragma once

#include "vector.h"

namespace fusewheel {

// Rows of numbers that are wider in memory than where they come from, such as sums: a vector of V of
// them is kept in pieces of 128 bits, the first pieces of all vectors before their second ones. So
// lanes side by side meet memory side by side.
template <int V, typename A>
constexpr int kVectorPiece = V == 1 ? 1 : kLanes<A>;

// The V elements from `i` on; a row has `size`.
template <int V, typename A>
__device__ inline void load_pieces(const A* row, int64_t i, int64_t size, A (&to)[V]) {
  constexpr int P = kVectorPiece<V, A>;
#pragma unroll
  for (int k = 0; k < V; k += P) {
    A piece[P];
    load(row + (k / P * (size / V) + i / V) * P, piece);
#pragma unroll
    for (int j = 0; j < P; ++j) {
      to[k + j] = piece[j];
    }
  }
}

template <int V, typename A>
__device__ inline void store_pieces(A* row, int64_t i, int64_t size, const A (&from)[V]) {
  constexpr int P = kVectorPiece<V, A>;
#pragma unroll
  for (int k = 0; k < V; k += P) {
    A piece[P];
#pragma unroll
    for (int j = 0; j < P; ++j) {
      piece[j] = from[k + j];
    }
    store(row + (k / P * (size / V) + i / V) * P, piece);
  }
}

// Which element stands at a place.
template <int V, typename A>
__device__ inline int64_t element_at(int64_t place, int64_t size) {
  constexpr int P = kVectorPiece<V, A>;
  if constexpr (V == P) {
    return place;
  }
  const int64_t pieces = size / V;
  const int64_t k = place / P / pieces;
  return (place / P - k * pieces) * V + k * P + place % P;
}

}  // namespace fusewheel
