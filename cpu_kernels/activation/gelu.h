// gelu(x) = x p(x) and its derivative, where p is the standard normal distribution function or, in
// the tanh form, (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3). Of p and of the
// derivative, the values at x and at -x add up to 1.
#pragma once

#include "simd/pieces.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Further out everything below is 0; infinity times that would be NaN.
constexpr double near(double a, double limit) { return a > limit ? limit : a; }
FUSEWHEEL_INLINE Vec<float> near(Vec<float> a, float limit) { return a > limit ? splat(limit) : a; }

FUSEWHEEL_INLINE bool any_less(Vec<float> x, float limit) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(bit_cast<__m512>(x), _mm512_set1_ps(limit), _CMP_LT_OQ) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(bit_cast<__m256>(x < limit)) != 0;
#else
  unsigned long long halves[2];
  const auto less = x < limit;
  __builtin_memcpy(halves, &less, sizeof(halves));
  return (halves[0] | halves[1]) != 0;
#endif
}

// exp(-exponent) * factor. The exponential alone may be denormal, with few bits to be multiplied.
// That nothing is left is not found by multiplying: underflow takes a hundred cycles.
FUSEWHEEL_INLINE Vec<float> decayed(Vec<float> exponent, Vec<float> factor) {
  constexpr float kNothing = 112.0f;
  const Vec<float> root = exp(near(exponent, kNothing) * -0.5f);
  return root * (exponent < kNothing ? factor : splat(0.0f)) * root;
}

struct GeluErf {
  static constexpr double kDensityAt0 = 0.39894228040143267794;  // 1 / sqrt(2 pi)
  static constexpr float kFar = 5.3f;

  // p(-a) over the density, six terms of Laplace's continued fraction: for a > kFar within 8e-8.
  FUSEWHEEL_INLINE static Vec<float> ratio(Vec<float> a) {
    const Vec<float> square = a * a;
    const Vec<float> above = ((square + 20.0f) * square + 87.0f) * square + 48.0f;
    const Vec<float> below = ((square + 21.0f) * square + 105.0f) * square + 105.0f;
    return above / (a * below);
  }

  struct Distribution {
    static constexpr int kDegree = 5;
    static constexpr double kFlat = 5.55;
    static constexpr double left(double a) {
      return constants::erfc(a * 0.70710678118654752440) / 2;
    }
  };
  struct Slope {
    static constexpr int kDegree = 6;
    static constexpr double kFlat = 6.2;
    static constexpr double left(double a) {
      a = near(a, 40);
      return Distribution::left(a) - a * kDensityAt0 * constants::exp(a * a / -2);
    }
    FUSEWHEEL_INLINE static Vec<float> tail(Vec<float> a) {
      return decayed(a * a / 2, (ratio(a) - a) * static_cast<float>(kDensityAt0));
    }
  };
};

struct GeluTanh {
  static constexpr double kTwice = 1.59576912160573071176;  // 2 sqrt(2 / pi)
  static constexpr float kFar = 4.5f;

  // 2u and its derivative.
  FUSEWHEEL_INLINE static Vec<float> twice(Vec<float> a) {
    return a * (a * a * static_cast<float>(0.044715 * kTwice) + static_cast<float>(kTwice));
  }
  FUSEWHEEL_INLINE static Vec<float> twice_slope(Vec<float> a) {
    return a * a * static_cast<float>(3 * 0.044715 * kTwice) + static_cast<float>(kTwice);
  }
  // 1 - exp(-2u): for a > kFar what 1 / (1 + exp(-2u)) is.
  FUSEWHEEL_INLINE static Vec<float> rest(Vec<float> a) { return 1 - exp(-near(twice(a), 80.0f)); }

  struct Distribution {
    static constexpr int kDegree = 5;
    static constexpr double kFlat = 5.2;
    static constexpr double left(double a) {
      a = near(a, 20);
      return 1 / (1 + constants::exp(kTwice * (a + 0.044715 * a * a * a)));
    }
  };
  struct Slope {
    static constexpr int kDegree = 6;
    static constexpr double kFlat = 5.7;
    static constexpr double left(double a) {
      a = near(a, 20);
      const double p = Distribution::left(a);
      return p - a * p * (1 - p) * kTwice * (1 + 3 * 0.044715 * a * a);
    }
    FUSEWHEEL_INLINE static Vec<float> tail(Vec<float> a) {
      const Vec<float> q = rest(a);
      return decayed(twice(a), q * (1 - a * q * twice_slope(a)));
    }
  };
};

template <typename Form, typename V>
FUSEWHEEL_INLINE V gelu_value(Form, V x) {
  return x * by_pieces<typename Form::Distribution>(x);
}

// Far out on the left the pieces lose their digits. PyTorch's values do as well there, its slopes do
// not; few vectors have one of these.
template <typename Form>
FUSEWHEEL_INLINE Vec<float> gelu_slope(Form, Vec<float> x) {
  const Vec<float> slope = by_pieces<typename Form::Slope>(x);
  if (__builtin_expect(any_less(x, -Form::kFar), 0)) {
    return x < -Form::kFar ? Form::Slope::tail(-x) : slope;
  }
  return slope;
}

template <typename Form>
FUSEWHEEL_INLINE Vec<double> gelu_slope(Form, Vec<double> x) {
  return by_pieces<typename Form::Slope>(x);
}

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
