// Vector functions of one argument. Specials are those of the C library: NaN stays NaN, overflow is
// infinite, results below the normal range are denormal.
#pragma once

#include "vec.h"

namespace fusewheel::FUSEWHEEL_ISA {

// exp(x) = 2^n exp(r) with |r| <= ln(2) / 2, n rounded to the nearest integer.
struct Power {
  VecOf<float>::integer exponent;  // n
  Vec<float> rest;                 // exp(r) - 1
};

// The minimax polynomial of degree 6 is off by less than one unit in the last place of `rest`.
FUSEWHEEL_INLINE Power reduce(Vec<float> x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec<float> shifted = x * kLog2E + kRound;
  const Vec<float> n = shifted - kRound;
  const Vec<float> r = x - n * kLn2High - n * kLn2Low;
  Vec<float> p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  using Integer = VecOf<float>::integer;
  return {bit_cast<Integer>(shifted) - bit_cast<int32_t>(kRound), p * (r * r) + r};
}

// 2^n for exponents of normal numbers.
FUSEWHEEL_INLINE Vec<float> power_of_two(VecOf<float>::integer n) {
  return bit_cast<Vec<float>>((n + 127) << 23);
}

FUSEWHEEL_INLINE Vec<float> exp(Vec<float> x) {
  // Beyond these the result is 0 or infinite anyway; NaN compares false and passes.
  x = x < -104.0f ? splat(-104.0f) : x;
  x = x > 89.0f ? splat(89.0f) : x;
  const Power e = reduce(x);
#if defined(__AVX512F__)
  const __m512 n = _mm512_cvtepi32_ps(bit_cast<__m512i>(e.exponent));
  return bit_cast<Vec<float>>(_mm512_scalef_ps(bit_cast<__m512>(e.rest + 1.0f), n));
#else
  // 2^n in two factors, each of which stays in the normal range.
  const auto half = e.exponent >> 1;
  return (e.rest + 1.0f) * power_of_two(half) * power_of_two(e.exponent - half);
#endif
}

// exp(x) for x <= 89, but 0 where that is below the normal range: processors compute denormal numbers
// slowly.
FUSEWHEEL_INLINE Vec<float> bounded_exp_normal(Vec<float> x) {
  constexpr float kLeast = -87.3f;
  const auto nothing = x < kLeast;
  const Power e = reduce(nothing ? splat(kLeast) : x);
  return nothing ? Vec<float>{} : (e.rest + 1.0f) * power_of_two(e.exponent);
}

// The same for any x.
FUSEWHEEL_INLINE Vec<float> exp_normal(Vec<float> x) {
  return bounded_exp_normal(x > 89.0f ? splat(89.0f) : x);
}

// exp(x) for x <= 0 and a sum in which some x is 0: what is below the normal range adds nothing to it.
FUSEWHEEL_INLINE Vec<float> exp_summand(Vec<float> x) {
#if defined(__AVX512F__)
  return exp(x);
#else
  return bounded_exp_normal(x);
#endif
}

// exp(x) - 1 for |x| <= 87, without the cancellation near 0.
FUSEWHEEL_INLINE Vec<float> exp_minus_one(Vec<float> x) {
  const Power e = reduce(x);
  const Vec<float> scale = power_of_two(e.exponent);
  return e.rest * scale + (scale - 1.0f);
}

FUSEWHEEL_INLINE Vec<float> magnitude(Vec<float> x) {
  return bit_cast<Vec<float>>(bit_cast<Bits>(x) & 0x7fffffff);
}

FUSEWHEEL_INLINE Vec<float> with_sign(Vec<float> value, Vec<float> sign) {
  constexpr uint32_t kSign = 0x80000000;
  return bit_cast<Vec<float>>((bit_cast<Bits>(value) & ~kSign) | (bit_cast<Bits>(sign) & kSign));
}

// An odd minimax polynomial near 0, further out tanh(a) = e / (e + 2) with e = exp(2a) - 1; within 2
// units in the last place.
FUSEWHEEL_INLINE Vec<float> tanh(Vec<float> x) {
  Vec<float> a = magnitude(x);
  a = a > 10.0f ? splat(10.0f) : a;  // where it is 1
  const Vec<float> square = a * a;
  Vec<float> p = splat(-5.8951577379e-3f);
  p = p * square + 2.0795971353e-2f;
  p = p * square - 5.3783830178e-2f;
  p = p * square + 1.3331924125e-1f;
  p = p * square - 3.3333298002e-1f;
  const Vec<float> e = exp_minus_one(a + a);
  return with_sign(a < 0.6f ? p * (square * a) + a : e / (e + 2.0f), x);
}

// log(1 + x) for 0 <= x <= 1: x - s (x - R) with s = x / (2 + x) and the odd series
// 2 artanh(s) = 2 s + s R, of which s <= 1/3 leaves nothing after the seventh term.
FUSEWHEEL_INLINE Vec<float> log_one_plus(Vec<float> x) {
  const Vec<float> s = x / (x + 2.0f);
  const Vec<float> square = s * s;
  Vec<float> p = splat(2.0f / 13);
  p = p * square + 2.0f / 11;
  p = p * square + 2.0f / 9;
  p = p * square + 2.0f / 7;
  p = p * square + 2.0f / 5;
  p = p * square + 2.0f / 3;
  return x - s * (x - p * square);
}

// float64 is there for checks, not for speed.
FUSEWHEEL_INLINE Vec<double> exp(Vec<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) {
    x[i] = __builtin_exp(x[i]);
  }
  return x;
}
FUSEWHEEL_INLINE Vec<double> exp_summand(Vec<double> x) { return exp(x); }
FUSEWHEEL_INLINE Vec<double> exp_normal(Vec<double> x) { return exp(x); }
FUSEWHEEL_INLINE Vec<double> tanh(Vec<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) {
    x[i] = __builtin_tanh(x[i]);
  }
  return x;
}
FUSEWHEEL_INLINE Vec<double> log_one_plus(Vec<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) {
    x[i] = __builtin_log1p(x[i]);
  }
  return x;
}

template <typename V>
FUSEWHEEL_INLINE V sigmoid(V x) {
  return 1 / (1 + exp(-x));
}

}  // namespace fusewheel::FUSEWHEEL_ISA
