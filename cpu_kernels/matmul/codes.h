// Vectors of codes of one byte.
#pragma once

#include "simd/vec.h"

namespace fusewheel::FUSEWHEEL_ISA {

typedef int8_t Codes8 __attribute__((vector_size(kLanes<float>)));
typedef uint8_t Nibbles8 __attribute__((vector_size(kLanes<float>)));

// One vector of codes as floats.
FUSEWHEEL_INLINE Vec<float> from_codes(Integers codes) {
  return __builtin_convertvector(codes, Vec<float>);
}
#if defined(__aarch64__)
// Four bytes, and something beside them.
FUSEWHEEL_INLINE uint32x2_t load_four(const void* from) {
  uint32_t four;
  __builtin_memcpy(&four, from, sizeof(four));
  return vdup_n_u32(four);
}
#endif
FUSEWHEEL_INLINE Integers load_codes(const int8_t* from) {
#if defined(__AVX512F__)
  return bit_cast<Integers>(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
  return bit_cast<Integers>(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#elif defined(__aarch64__)
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_u32(load_four(from)));
  return bit_cast<Integers>(vmovl_s16(vget_low_s16(wide)));
#else
  Codes8 codes;
  __builtin_memcpy(&codes, from, sizeof(codes));
  return __builtin_convertvector(codes, Integers);
#endif
}
FUSEWHEEL_INLINE Integers load_codes(const uint8_t* from) {
#if defined(__AVX512F__)
  return bit_cast<Integers>(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
  return bit_cast<Integers>(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#elif defined(__aarch64__)
  const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(load_four(from)));
  return bit_cast<Integers>(vmovl_u16(vget_low_u16(wide)));
#else
  Nibbles8 codes;
  __builtin_memcpy(&codes, from, sizeof(codes));
  return __builtin_convertvector(codes, Integers);
#endif
}

}  // namespace fusewheel::FUSEWHEEL_ISA
