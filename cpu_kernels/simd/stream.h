// Stores past the caches, for results that are larger than these: memory is not read before it is
// overwritten, and what is in the caches stays there.
#pragma once

#include "vec.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace fusewheel::FUSEWHEEL_ISA {

// A vector as numbers of T, to a place that is a multiple of its size.
template <typename T>
FUSEWHEEL_INLINE void stream(T* to, Vec<Accumulate<T>> value) {
  struct alignas(sizeof(T) * kLanes<Accumulate<T>>) Numbers {
    T numbers[kLanes<Accumulate<T>>];
  } rounded;
  store(rounded.numbers, value);
#if defined(__AVX512F__)
  if constexpr (sizeof(rounded) == sizeof(__m512i)) {
    return _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bit_cast<__m512i>(rounded));
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(rounded) == sizeof(__m256i)) {
    return _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bit_cast<__m256i>(rounded));
  }
#endif
#if defined(__SSE2__)
  if constexpr (sizeof(rounded) == sizeof(__m128i)) {
    return _mm_stream_si128(reinterpret_cast<__m128i*>(to), bit_cast<__m128i>(rounded));
  }
#endif
  __builtin_memcpy(to, &rounded, sizeof(rounded));
}

// Lets other threads see what was stored so.
FUSEWHEEL_INLINE void end_of_stream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace fusewheel::FUSEWHEEL_ISA
