// y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var(x) + eps), row by row

#include <fusewheel/norm/layer_norm.h>

#include "common/stream.h"

namespace fusewheel {
void layer_norm_launch(const LayerNormArgs&, Stream);
void layer_norm_backward_launch(const LayerNormBackwardArgs&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

#include "layer_norm.h"

namespace fusewheel {
namespace {

struct LayerNormCall {
  LayerNormArgs norm;

  template <typename T, int V>
  __device__ void read(int64_t row, int64_t i, Accumulate<T> (&values)[V]) const {
    load(static_cast<const T*>(norm.x) + row * norm.x_stride + i, values);
  }

  bool has_vectors(int64_t) const { return true; }
};

struct LayerNormBackwardCall {
  LayerNormBackwardArgs norm;

  template <typename T, int V>
  __device__ void finish(int64_t, int64_t, Accumulate<T> (&)[V]) const {}

  bool has_vectors(int64_t) const { return true; }
};

}  // namespace

void layer_norm_launch(const LayerNormArgs& args, Stream stream) {
  layer_norm_forward("layer_norm", LayerNormCall{args}, stream);
}

void layer_norm_backward_launch(const LayerNormBackwardArgs& args, Stream stream) {
  layer_norm_backward("layer_norm_backward", LayerNormBackwardCall{args}, stream);
}

}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include "common/glue.h"

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& x, const OptionalTensor& weight,
                                              const OptionalTensor& bias, double eps) {
  const LayerNorm call("layer_norm", {"x", x}, weight, bias, eps);
  if (call.args.count > 0) {
    layer_norm_launch(call.args, OnDevice("layer_norm", x).stream());
  }
  return {call.y, call.mean, call.rstd};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad, const Tensor& x,
                                                       const OptionalTensor& weight,
                                                       const Tensor& mean, const Tensor& rstd,
                                                       bool parameters) {
  const LayerNormBackward call("layer_norm_backward", grad, {"x", x}, weight, mean, rstd,
                               parameters, device_row_chunks);
  if (call.args.size > 0) {
    layer_norm_backward_launch(call.args, OnDevice("layer_norm_backward", x).stream());
  }
  return {call.grad_x, call.grad_weight, call.grad_bias};
}

FUSEWHEEL_KERNELS(library) {
  kernel<layer_norm>(library, "layer_norm");
  kernel<layer_norm_backward>(library, "layer_norm_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
