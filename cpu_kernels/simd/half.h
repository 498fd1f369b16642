// The half types as vectors of float, and back: with the instruction where this level has it, in the
// integers' own terms where it does not.
#pragma once

#include "lanes.h"

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace fusewheel::FUSEWHEEL_ISA {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

FUSEWHEEL_INLINE Vec<float> widen(Half half, BFloat16) {
#if defined(__aarch64__)
  // gcc 12 takes the general form apart, lane by lane.
  return bit_cast<Vec<float>>(vshll_n_u16(bit_cast<uint16x4_t>(half), 16));
#elif defined(__AVX512F__)
  // gcc 12 widens the two halves of the general form apart.
  return bit_cast<Vec<float>>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bit_cast<__m256i>(half)), 16));
#else
  return bit_cast<Vec<float>>(__builtin_convertvector(half, Bits) << 16);
#endif
}

// The upper half of each sum is the value rounded to the nearest, to even if there are two.
FUSEWHEEL_INLINE Bits rounding_bits(Vec<float> value) {
  const Bits bits = bit_cast<Bits>(value);
  return bits + 0x7fff + ((bits >> 16) & 1);
}

#if defined(__AVX512F__)
// The bits of the value rounded to the upper halves; the lower ones are left over.
FUSEWHEEL_INLINE __m512i rounded_lanes(Vec<float> value) {
  const __m512i bits = bit_cast<__m512i>(value);
  const __mmask16 number = _mm512_cmp_ps_mask(bit_cast<__m512>(value), bit_cast<__m512>(value),
                                              _CMP_ORD_Q);
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i nan = _mm512_set1_epi32(0x7fc00000);
  const __m512i sums = _mm512_mask_add_epi32(nan, number, bits, _mm512_set1_epi32(0x7fff));
  return _mm512_mask_add_epi32(sums, odd, sums, _mm512_set1_epi32(1));
}
FUSEWHEEL_INLINE Half narrow(Vec<float> value, BFloat16) {
  // One permutation is quicker than a shift and vpmovdw.
  const __m512i upper = _mm512_set_epi16(
      31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 31, 29, 27, 25, 23, 21, 19, 17, 15,
      13, 11, 9, 7, 5, 3, 1);
  return bit_cast<Half>(
      _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, rounded_lanes(value))));
}
#else
FUSEWHEEL_INLINE Half narrow(Vec<float> value, BFloat16) {
  const Bits nan = bit_cast<Bits>(value != value);  // all ones, which is a NaN as well
  const Bits rounded = (rounding_bits(value) | nan) >> 16;
#if defined(__AVX2__)
  const __m256i words = bit_cast<__m256i>(rounded);
  return bit_cast<Half>(_mm_packus_epi32(_mm256_castsi256_si128(words),
                                         _mm256_extracti128_si256(words, 1)));
#else
  return __builtin_convertvector(rounded, Half);
#endif
}
#endif

#if defined(__AVX512F__)
FUSEWHEEL_INLINE Vec<float> widen(Half half, Float16) {
  return bit_cast<Vec<float>>(_mm512_cvtph_ps(bit_cast<__m256i>(half)));
}
FUSEWHEEL_INLINE Half narrow(Vec<float> value, Float16) {
  return bit_cast<Half>(_mm512_cvtps_ph(bit_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
FUSEWHEEL_INLINE Vec<float> widen(Half half, Float16) {
  return bit_cast<Vec<float>>(_mm256_cvtph_ps(bit_cast<__m128i>(half)));
}
FUSEWHEEL_INLINE Half narrow(Vec<float> value, Float16) {
  return bit_cast<Half>(_mm256_cvtps_ph(bit_cast<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__aarch64__)
FUSEWHEEL_INLINE Vec<float> widen(Half half, Float16) {
  return bit_cast<Vec<float>>(vcvt_f32_f16(bit_cast<float16x4_t>(half)));
}
FUSEWHEEL_INLINE Half narrow(Vec<float> value, Float16) {
  return bit_cast<Half>(vcvt_f16_f32(bit_cast<float32x4_t>(value)));
}
#else
FUSEWHEEL_INLINE Vec<float> widen(Half half, Float16) {
  const Bits bits = __builtin_convertvector(half, Bits);
  const Bits magnitude = (bits & 0x7fff) << 13;
  const Bits normal = magnitude + 0x38000000;  // the exponent counts from another number
  // The bits of a denormal stand below those of the smallest normal number, which is then taken off.
  // No float on the way is denormal: a process may have asked for such floats to be read as zeros.
  const Bits tiny = bit_cast<Bits>(magnitude < 0x00800000);
  const Bits denormal =
      bit_cast<Bits>(bit_cast<Vec<float>>(magnitude + 0x38800000) - 0x1p-14f);
  const Bits special = bit_cast<Bits>(magnitude >= 0x0f800000) & 0x7f800000;
  return bit_cast<Vec<float>>((tiny & denormal) | (~tiny & normal) | special |
                              ((bits & 0x8000) << 16));
}
FUSEWHEEL_INLINE Half narrow(Vec<float> value, Float16) {
  const Bits bits = bit_cast<Bits>(value);
  const Bits sign = (bits >> 16) & 0x8000;
  const Bits magnitude = bits & 0x7fffffff;
  // Too large for a half, infinite, or NaN.
  const Bits large = bit_cast<Bits>(magnitude >= 0x47800000);
  const Bits nan = bit_cast<Bits>(magnitude > 0x7f800000);
  // Adding 0.5 lines a denormal's bits up at the bottom of the mantissa, rounded to even.
  const Bits tiny = bit_cast<Bits>(magnitude < 0x38800000);
  const Bits denormal = bit_cast<Bits>(bit_cast<Vec<float>>(magnitude) + 0.5f) - 0x3f000000;
  const Bits normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const Bits finite = (tiny & denormal) | (~tiny & normal);
  const Bits out = (large & ((nan & 0x7e00) | (~nan & 0x7c00))) | (~large & finite);
  return __builtin_convertvector(out | sign, Half);
}
#endif

// What `narrow` makes of a value, read back.
template <typename T>
FUSEWHEEL_INLINE Vec<float> narrowed(Vec<float> value, T) {
  return widen(narrow(value, T{}), T{});
}
FUSEWHEEL_INLINE Vec<float> narrowed(Vec<float> value, BFloat16) {
  const Vec<float> rounded = bit_cast<Vec<float>>(rounding_bits(value) & 0xffff0000);
  return value == value ? rounded : value;
}

}  // namespace fusewheel::FUSEWHEEL_ISA
