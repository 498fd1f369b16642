// Vector functions of one argument. Specials are those of the C library: NaN stays NaN, overflow is
// infinite, results below the normal range are denormal.
#pragma once

#include "vec.h"

namespace fusewheel::FUSEWHEEL_ISA {

// exp(x) = 2^n exp(r) with |r| <= ln(2) / 2; the minimax polynomial of degree 6 is off by less
// than one unit in the last place over the whole range.
FUSEWHEEL_INLINE Vec<float> exp(Vec<float> x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  // Beyond these the result is 0 or infinite anyway; NaN compares false and passes.
  x = x < -104.0f ? splat(-104.0f) : x;
  x = x > 89.0f ? splat(89.0f) : x;
  const Vec<float> shifted = x * kLog2E + kRound;
  const Vec<float> n = shifted - kRound;
  const Vec<float> r = x - n * kLn2High - n * kLn2Low;
  Vec<float> p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors, each of which stays in the normal range.
  using Integer = VecOf<float>::integer;
  const Integer exponent = bit_cast<Integer>(shifted) - bit_cast<int32_t>(kRound);
  const Integer half = exponent >> 1;
  const auto power = [](Integer e) { return bit_cast<Vec<float>>((e + 127) << 23); };
  return p * power(half) * power(exponent - half);
}

// float64 is there for checks, not for speed.
FUSEWHEEL_INLINE Vec<double> exp(Vec<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) {
    x[i] = __builtin_exp(x[i]);
  }
  return x;
}

template <typename V>
FUSEWHEEL_INLINE V sigmoid(V x) {
  return 1 / (1 + exp(-x));
}

}  // namespace fusewheel::FUSEWHEEL_ISA
