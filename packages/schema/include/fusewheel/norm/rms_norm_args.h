// What the kernels of rms_norm are given: plain data, no torch.
#pragma once

#include <fusewheel/geometry.h>

namespace fusewheel {

// How weight and rounding meet; the numbers are those of the schema's `cast`.
enum class RmsNormCast : int64_t { kLlama, kGemma, kTorch };

struct RmsNormArgs {
  const void* x;
  const void* weight;
  void* y;
  void* rstd;
  int64_t count;
  int64_t size;
  int64_t x_stride;
  double eps;
  RmsNormCast cast;
  Dtype dtype;
};

struct RmsNormBackwardArgs {
  const void* grad;
  const void* x;
  const void* weight;
  const void* rstd;
  void* grad_x;
  void* partials;  // [chunks, size]: the weight gradient of each chunk of rows
  void* grad_weight;
  int64_t count;
  int64_t size;
  int64_t grad_stride;
  int64_t x_stride;
  int64_t chunks;
  RmsNormCast cast;
  Dtype dtype;
};

// Each kernel library has its own.
void rms_norm_launch(const RmsNormArgs&, Stream);
void rms_norm_backward_launch(const RmsNormBackwardArgs&, Stream);

}  // namespace fusewheel
