// Several neighbouring elements a thread: 128 bits an access where the address allows it.
#pragma once

#include <cstring>

#include "numbers.h"

namespace fusewheel {

constexpr int kVectorBytes = 16;

// Elements of T in one 128-bit access.
template <typename T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

inline bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kVectorBytes == 0;
}

// from[i] for an `i` that the compiler does not know: registers cannot be indexed.
template <int N, typename T>
__device__ T one_of(const T (&from)[N], int i) {
  T own = from[0];
#pragma unroll
  for (int k = 1; k < N; ++k) {
    own = i == k ? from[k] : own;
  }
  return own;
}

// Moves every element, or row, one place forward and the first to the end. A loop that is not unrolled
// cannot index registers: it works on the first element, turns the array, and so meets all of them.
template <typename A, int count>
__device__ inline void turn(A (&elements)[count]) {
  const A first = elements[0];
#pragma unroll
  for (int i = 1; i < count; ++i) {
    elements[i - 1] = elements[i];
  }
  elements[count - 1] = first;
}
template <typename A, int rows, int columns>
__device__ inline void turn(A (&tile)[rows][columns]) {
#pragma unroll
  for (int j = 0; j < columns; ++j) {
    const A first = tile[0][j];
#pragma unroll
    for (int i = 1; i < rows; ++i) {
      tile[i - 1][j] = tile[i][j];
    }
    tile[rows - 1][j] = first;
  }
}

// V elements: one of them, or a multiple of kLanes<T> at an aligned address.
template <int V, typename T>
__device__ inline void load(const T* from, Accumulate<T> (&to)[V]) {
  if constexpr (V == 1) {
    to[0] = widen(*from);
  } else {
    static_assert(V % kLanes<T> == 0, "whole 128-bit accesses");
    FUSEWHEEL_EXPECT_ALIGNED(from, kVectorBytes);
#pragma unroll
    for (int i = 0; i < V; i += kLanes<T>) {
      const uint4 bits = *reinterpret_cast<const uint4*>(from + i);
      T elements[kLanes<T>];
      memcpy(elements, &bits, sizeof(bits));
#pragma unroll
      for (int j = 0; j < kLanes<T>; ++j) {
        to[i + j] = widen(elements[j]);
      }
    }
  }
}

template <int V, typename T>
__device__ inline void store(T* to, const Accumulate<T> (&from)[V]) {
  if constexpr (V == 1) {
    narrow(from[0], *to);
  } else {
    static_assert(V % kLanes<T> == 0, "whole 128-bit accesses");
    FUSEWHEEL_EXPECT_ALIGNED(to, kVectorBytes);
#pragma unroll
    for (int i = 0; i < V; i += kLanes<T>) {
      T elements[kLanes<T>];
#pragma unroll
      for (int j = 0; j < kLanes<T>; ++j) {
        narrow(from[i + j], elements[j]);
      }
      uint4 bits;
      memcpy(&bits, elements, sizeof(bits));
      *reinterpret_cast<uint4*>(to + i) = bits;
    }
  }
}

// The first `count` of V elements, wherever they lie; the others read as zero, or are not written.
template <int V, typename T>
__device__ inline void load(const T* from, Accumulate<T> (&to)[V], int64_t count) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    to[i] = i < count ? widen(from[i]) : Accumulate<T>{};
  }
}
template <int V, typename T>
__device__ inline void store(T* to, const Accumulate<T> (&from)[V], int64_t count) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i < count) {
      narrow(from[i], to[i]);
    }
  }
}

}  // namespace fusewheel
