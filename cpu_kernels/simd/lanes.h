// The vector types, over the compiler's vector extension: as wide as this level's instructions.
#pragma once

#include <cstdint>

#include "isa.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif

template <typename A>
struct VecOf;
template <>
struct VecOf<float> {
  typedef float type __attribute__((vector_size(kBytes)));
  typedef int32_t integer __attribute__((vector_size(kBytes)));
  typedef uint32_t bits __attribute__((vector_size(kBytes)));
  typedef uint16_t half __attribute__((vector_size(kBytes / 2)));
};
template <>
struct VecOf<double> {
  typedef double type __attribute__((vector_size(kBytes)));
  typedef int64_t integer __attribute__((vector_size(kBytes)));
};

template <typename A>
using Vec = typename VecOf<A>::type;
using Integers = VecOf<float>::integer;
using Bits = VecOf<float>::bits;
using Half = VecOf<float>::half;

// The type a kernel computes in.
template <typename T>
struct AccumulateOf {
  using type = float;
};
template <>
struct AccumulateOf<double> {
  using type = double;
};
template <typename T>
using Accumulate = typename AccumulateOf<T>::type;

template <typename A>
constexpr int kLanes = kBytes / static_cast<int>(sizeof(A));

template <typename To, typename From>
FUSEWHEEL_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

template <typename A>
FUSEWHEEL_INLINE Vec<A> splat(A value) {
  return value - Vec<A>{};  // exact for every value, -0 included
}

// The lanes of `from`, or of two vectors in a row, that `lanes` chooses.
#if defined(__clang__)
template <typename V, typename I>
FUSEWHEEL_INLINE V shuffle(V from, I lanes) {
  constexpr int count = sizeof(I) / sizeof(lanes[0]);
  V to;
  for (int i = 0; i < count; ++i) {
    to[i] = from[lanes[i] & (count - 1)];
  }
  return to;
}
template <typename V, typename I>
FUSEWHEEL_INLINE V shuffle(V from, V next, I lanes) {
  constexpr int count = sizeof(I) / sizeof(lanes[0]);
  V to;
  for (int i = 0; i < count; ++i) {
    const auto lane = lanes[i] & (count - 1);
    to[i] = (lanes[i] & count) == 0 ? from[lane] : next[lane];
  }
  return to;
}
#else
template <typename V, typename I>
FUSEWHEEL_INLINE V shuffle(V from, I lanes) {
  return __builtin_shuffle(from, lanes);
}
template <typename V, typename I>
FUSEWHEEL_INLINE V shuffle(V from, V next, I lanes) {
  return __builtin_shuffle(from, next, lanes);
}
#endif

}  // namespace fusewheel::FUSEWHEEL_ISA
