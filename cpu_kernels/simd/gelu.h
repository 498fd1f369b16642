// gelu(x) = x p(x) and its derivative, where p is the standard normal distribution function or, in
// the tanh form, (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3). Of p and of the
// derivative, the values at x and at -x add up to 1.
#pragma once

#include "pieces.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Further out everything below is 0; infinity times that would be NaN.
constexpr double near(double a, double limit) { return a > limit ? limit : a; }

struct GeluErf {
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
      constexpr double kDensityAt0 = 0.39894228040143267794;  // 1 / sqrt(2 pi)
      a = near(a, 40);
      return Distribution::left(a) - a * kDensityAt0 * constants::exp(a * a / -2);
    }
  };
};

struct GeluTanh {
  static constexpr double kTwice = 1.59576912160573071176;  // 2 sqrt(2 / pi)

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
  };
};

template <typename Form, typename V>
FUSEWHEEL_INLINE V gelu_value(Form, V x) {
  return x * by_pieces<typename Form::Distribution>(x);
}

template <typename Form, typename V>
FUSEWHEEL_INLINE V gelu_slope(Form, V x) {
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
