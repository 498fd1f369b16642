// What the kernels of layer_norm are given: plain data, no torch.
#pragma once

#include <fusewheel/geometry.h>

namespace fusewheel {

struct LayerNormArgs {
  const void* x;
  const void* weight;  // null: ones
  const void* bias;    // null: zeros
  void* y;
  void* mean;
  void* rstd;
  int64_t count;
  int64_t size;
  int64_t x_stride;
  double eps;
  Dtype dtype;
};

struct LayerNormBackwardArgs {
  const void* grad;
  const void* x;
  const void* weight;  // null: ones
  const void* mean;
  const void* rstd;
  void* grad_x;
  // [chunks, size] each: the gradients of each chunk of rows. Null where they are not wanted.
  void* weight_partials;
  void* bias_partials;
  void* grad_weight;
  void* grad_bias;
  int64_t count;
  int64_t size;
  int64_t grad_stride;
  int64_t x_stride;
  int64_t chunks;
  Dtype dtype;
};

// Each kernel library has its own.
void layer_norm_launch(const LayerNormArgs&, Stream);
void layer_norm_backward_launch(const LayerNormBackwardArgs&, Stream);

}  // namespace fusewheel
