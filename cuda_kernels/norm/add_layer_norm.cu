// sum = x + residual, y = layer_norm(sum), row by row

#include <fusewheel/norm/add_layer_norm.h>

#include "common/stream.h"

namespace fusewheel {
void add_layer_norm_launch(const AddLayerNormArgs&, Stream);
void add_layer_norm_backward_launch(const AddLayerNormBackwardArgs&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

#include "add_rows.h"
#include "layer_norm.h"

namespace fusewheel {

void add_layer_norm_launch(const AddLayerNormArgs& args, Stream stream) {
  layer_norm_forward("add_layer_norm", OfSum<AddLayerNormArgs>{args}, stream);
}

void add_layer_norm_backward_launch(const AddLayerNormBackwardArgs& args, Stream stream) {
  layer_norm_backward("add_layer_norm_backward", OfSumBackward<AddLayerNormBackwardArgs>{args},
                      stream);
}

}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include "common/glue.h"

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                                          const OptionalTensor& weight,
                                                          const OptionalTensor& bias, double eps) {
  const AddLayerNorm call("add_layer_norm", x, residual, weight, bias, eps);
  if (call.args.norm.count > 0) {
    add_layer_norm_launch(call.args, OnDevice("add_layer_norm", x).stream());
  }
  return {call.norm.y, call.add.sum, call.norm.mean, call.norm.rstd};
}

std::tuple<Tensor, Tensor, Tensor> add_layer_norm_backward(
    const Tensor& grad, const Tensor& grad_sum, const Tensor& sum, const OptionalTensor& weight,
    const Tensor& mean, const Tensor& rstd, bool parameters) {
  const AddLayerNormBackward call("add_layer_norm_backward", grad, grad_sum, sum, weight, mean,
                                  rstd, parameters, device_row_chunks);
  if (call.args.norm.size > 0) {
    add_layer_norm_backward_launch(call.args, OnDevice("add_layer_norm_backward", sum).stream());
  }
  return {call.norm.grad_x, call.norm.grad_weight, call.norm.grad_bias};
}

FUSEWHEEL_KERNELS(library) {
  kernel<add_layer_norm>(library, "add_layer_norm");
  kernel<add_layer_norm_backward>(library, "add_layer_norm_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
