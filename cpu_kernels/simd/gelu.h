// gelu(x) = x p(x) and its derivative, where p is the standard normal distribution function or, in
// the tanh form, (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3).
#pragma once

#include "math.h"

namespace fusewheel::FUSEWHEEL_ISA {

template <typename V>
using Element = decltype(+V{}[0]);

template <typename V>
FUSEWHEEL_INLINE V clamp(V x, Element<V> limit) {
  x = x < -limit ? splat(-limit) : x;
  return x > limit ? splat(limit) : x;
}

struct GeluErf {
  template <typename V>
  FUSEWHEEL_INLINE static V distribution(V x) {
    constexpr Element<V> kSqrtHalf = 0.70710678118654752440;
    return (erf(x * kSqrtHalf) + 1) / 2;
  }

  template <typename V>
  FUSEWHEEL_INLINE static V value(V x) {
    return x * distribution(x);
  }

  template <typename V>
  FUSEWHEEL_INLINE static V slope(V x) {
    constexpr Element<V> kDensityAt0 = 0.39894228040143267794;  // 1 / sqrt(2 pi)
    // Further out the density is 0; infinity times that would be NaN.
    const V near = clamp(x, 40);
    return distribution(x) + near * kDensityAt0 * exp(near * near / -2);
  }
};

struct GeluTanh {
  // -2u = x * factor(x, 1); its derivative is factor(x, 3).
  template <typename V>
  FUSEWHEEL_INLINE static V factor(V x, Element<V> cubic) {
    constexpr Element<V> a = -1.59576912160573071176;
    constexpr Element<V> b = -0.07135481627260024876;
    return a + cubic * b * x * x;
  }

  template <typename V>
  FUSEWHEEL_INLINE static V value(V x) {
    return x / (1 + exp(x * factor(x, 1)));
  }

  template <typename V>
  FUSEWHEEL_INLINE static V slope(V x) {
    // Further out it is 0 or 1; here exp is finite.
    x = clamp(x, 10);
    const V e = exp(x * factor(x, 1));
    const V p = 1 / (1 + e);
    return p - x * factor(x, 3) * (p * e * p);
  }
};

// Calls body(form) with the form that an operator's argument `tanh` stands for.
template <typename Body>
FUSEWHEEL_INLINE void for_gelu(double tanh, Body body) {
  if (tanh != 0) {
    body(GeluTanh());
  } else {
    body(GeluErf());
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
