// y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var(x) + eps), row by row

#include <fusewheel/kernel.h>
#include <fusewheel/norm/layer_norm.h>

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& x, const OptionalTensor& weight,
                                              const OptionalTensor& bias, double eps) {
  const LayerNorm call("layer_norm", {"x", x}, weight, bias, eps);
  run("layer_norm", layer_norm_launch, call.args, x);
  return {call.y, call.mean, call.rstd};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad, const Tensor& x,
                                                       const OptionalTensor& weight,
                                                       const Tensor& mean, const Tensor& rstd,
                                                       bool parameters) {
  const LayerNormBackward call("layer_norm_backward", grad, {"x", x}, weight, mean, rstd,
                               parameters);
  if (call.args.size > 0) {
    run("layer_norm_backward", layer_norm_backward_launch, call.args, x);
  }
  return {call.grad_x, call.grad_weight, call.grad_bias};
}

FUSEWHEEL_KERNELS(library) {
  kernel<layer_norm>(library, "layer_norm");
  kernel<layer_norm_backward>(library, "layer_norm_backward");
}

}  // namespace
}  // namespace fusewheel
