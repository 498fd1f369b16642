// Element types and the types kernels compute in: half types are read into float and written back.
#pragma once

#include "device.h"

namespace fusewheel {

template <typename T>
struct AccumulateOf {
  using type = float;
};
template <>
struct AccumulateOf<double> {
  using type = double;
};
template <typename T>
using Accumulate = typename AccumulateOf<T>::type;

__device__ inline float widen(float value) { return value; }
__device__ inline double widen(double value) { return value; }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float widen(__half value) { return __half2float(value); }

__device__ inline void narrow(float value, float& to) { to = value; }
__device__ inline void narrow(double value, double& to) { to = value; }
__device__ inline void narrow(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }
__device__ inline void narrow(float value, __half& to) { to = __float2half_rn(value); }

// The upper half of the bits, which is a number of bfloat16.
__device__ inline float cut(float x) { return __uint_as_float(__float_as_uint(x) & 0xffff0000u); }

// What a value becomes when it is stored as T and read back.
template <typename T>
__device__ inline Accumulate<T> round_to(Accumulate<T> value) {
  T stored;
  narrow(value, stored);
  return widen(stored);
}

// One number of a dtype known at run time, for operands that are read or written seldom.
template <typename A>
__device__ inline A load_one(const void* from, Dtype dtype, int64_t i) {
  switch (dtype) {
    case Dtype::kFloat32: return widen(static_cast<const float*>(from)[i]);
    case Dtype::kBFloat16: return widen(static_cast<const __nv_bfloat16*>(from)[i]);
    case Dtype::kFloat16: return widen(static_cast<const __half*>(from)[i]);
    default: return static_cast<A>(static_cast<const double*>(from)[i]);
  }
}
__device__ inline void store_one(double value, void* to, Dtype, int64_t i) {
  static_cast<double*>(to)[i] = value;
}
__device__ inline void store_one(float value, void* to, Dtype dtype, int64_t i) {
  switch (dtype) {
    case Dtype::kBFloat16: return narrow(value, static_cast<__nv_bfloat16*>(to)[i]);
    case Dtype::kFloat16: return narrow(value, static_cast<__half*>(to)[i]);
    default: return narrow(value, static_cast<float*>(to)[i]);
  }
}

// a * b + c, rounded once: what nvcc makes of the expression, said so that every compiler does.
__device__ inline float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// The accurate functions, not the fast approximations of the special function unit.
__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }
__device__ inline float log_one_plus(float x) { return log1pf(x); }
__device__ inline double log_one_plus(double x) { return log1p(x); }
__device__ inline float hyperbolic_tangent(float x) { return tanhf(x); }
__device__ inline double hyperbolic_tangent(double x) { return tanh(x); }
__device__ inline float error_function(float x) { return erff(x); }
__device__ inline double error_function(double x) { return erf(x); }
__device__ inline double complementary_error_function(double x) { return erfc(x); }
__device__ inline float square_root(float x) { return sqrtf(x); }
__device__ inline double square_root(double x) { return sqrt(x); }

template <typename A>
__device__ inline A sigmoid(A x) {
  return 1 / (1 + exponential(-x));
}

}  // namespace fusewheel
