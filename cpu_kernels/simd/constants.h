// Functions of float64 that a compiler can evaluate: gcc knows the mathematical ones itself, clang
// does not, and gets series that are as exact as coefficients of float32 need.
#pragma once

namespace fusewheel::FUSEWHEEL_ISA::constants {

#if defined(__clang__)

constexpr double exp(double x) {
  constexpr double kLn2 = 0.693147180559945309417;
  const int halvings = static_cast<int>(x / kLn2);
  const double rest = x - halvings * kLn2;
  double term = 1;
  double sum = 1;
  for (int n = 1; n < 24; ++n) {
    term *= rest / n;
    sum += term;
  }
  for (int i = 0; i < halvings; ++i) {
    sum *= 2;
  }
  for (int i = 0; i > halvings; --i) {
    sum /= 2;
  }
  return sum;
}

constexpr double cos(double x) {
  double term = 1;
  double sum = 1;
  for (int n = 1; n < 20; ++n) {
    term *= -x * x / ((2 * n - 1) * (2 * n));
    sum += term;
  }
  return sum;
}

// Near 0 by Kummer's series of erf, further out by Laplace's continued fraction.
constexpr double erfc(double x) {
  constexpr double kRootOfPi = 1.77245385090551602730;
  if (x < 2) {
    double term = x;
    double sum = x;
    for (int n = 1; n < 60; ++n) {
      term *= 2 * x * x / (2 * n + 1);
      sum += term;
    }
    return 1 - 2 / kRootOfPi * exp(-x * x) * sum;
  }
  double fraction = x;
  for (int n = 120; n > 0; --n) {
    fraction = x + n / 2.0 / fraction;
  }
  return exp(-x * x) / (kRootOfPi * fraction);
}

#else

constexpr double exp(double x) { return __builtin_exp(x); }
constexpr double cos(double x) { return __builtin_cos(x); }
constexpr double erfc(double x) { return __builtin_erfc(x); }

#endif

}  // namespace fusewheel::FUSEWHEEL_ISA::constants
