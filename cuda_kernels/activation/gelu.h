// gelu(x) = x p(x) and its derivative, where p is the standard normal distribution function or, in
// the tanh form, (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3).
#pragma once

#include "common/numbers.h"

namespace fusewheel {
namespace {

template <typename A>
__device__ A clamp(A x, A limit) {
  x = x < -limit ? -limit : x;
  return x > limit ? limit : x;
}

struct GeluErf {
  template <typename A>
  __device__ static A distribution(A x) {
    constexpr A kSqrtHalf = static_cast<A>(0.70710678118654752440);
    if constexpr (sizeof(A) == sizeof(double)) {  // for checks: no digit is lost on the left
      return complementary_error_function(-x * kSqrtHalf) / 2;
    }
    return (error_function(x * kSqrtHalf) + 1) / 2;
  }

  template <typename A>
  __device__ static A value(A x) {
    return x * distribution(x);
  }

  template <typename A>
  __device__ static A slope(A x) {
    constexpr A kDensityAt0 = static_cast<A>(0.39894228040143267794);  // 1 / sqrt(2 pi)
    // Further out the density is 0; infinity times that would be NaN.
    const A near = clamp<A>(x, 40);
    // The density first: in the other order float16 needs more registers than sm_75 has.
    const A density = near * kDensityAt0 * exponential(near * near / -2);
    return density + distribution(x);
  }
};

struct GeluTanh {
  // -2u = x * factor(x, 1); its derivative is factor(x, 3).
  template <typename A>
  __device__ static A factor(A x, A cubic) {
    constexpr A a = static_cast<A>(-1.59576912160573071176);
    constexpr A b = static_cast<A>(-0.07135481627260024876);
    return a + cubic * b * x * x;
  }

  template <typename A>
  __device__ static A value(A x) {
    return x / (1 + exponential(x * factor<A>(x, 1)));
  }

  template <typename A>
  __device__ static A slope(A x) {
    // Further out it is 0 or 1; here exp is finite.
    const A near = clamp<A>(x, 10);
    const A e = exponential(near * factor<A>(near, 1));
    const A p = 1 / (1 + e);
    return x < near ? 0 : p - near * factor<A>(near, 3) * (p * e * p);
  }
};

// Calls body(form) with the form that an operator's argument `tanh` stands for.
template <typename Body>
void for_gelu(double tanh, const Body& body) {
  if (tanh != 0) {
    body(GeluTanh());
  } else {
    body(GeluErf());
  }
}

}  // namespace
}  // namespace fusewheel
