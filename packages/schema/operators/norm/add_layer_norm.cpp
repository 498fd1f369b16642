// sum = x + residual, y = layer_norm(sum), row by row

#include <fusewheel/kernel.h>
#include <fusewheel/norm/add_layer_norm.h>

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                                          const OptionalTensor& weight,
                                                          const OptionalTensor& bias, double eps) {
  const AddLayerNorm call("add_layer_norm", x, residual, weight, bias, eps);
  run("add_layer_norm", add_layer_norm_launch, call.args, x);
  return {call.norm.y, call.add.sum, call.norm.mean, call.norm.rstd};
}

std::tuple<Tensor, Tensor, Tensor> add_layer_norm_backward(
    const Tensor& grad, const Tensor& grad_sum, const Tensor& sum, const OptionalTensor& weight,
    const Tensor& mean, const Tensor& rstd, bool parameters) {
  const AddLayerNormBackward call("add_layer_norm_backward", grad, grad_sum, sum, weight, mean,
                                  rstd, parameters);
  if (call.args.norm.size > 0) {
    run("add_layer_norm_backward", add_layer_norm_backward_launch, call.args, sum);
  }
  return {call.norm.grad_x, call.norm.grad_weight, call.norm.grad_bias};
}

FUSEWHEEL_KERNELS(library) {
  kernel<add_layer_norm>(library, "add_layer_norm");
  kernel<add_layer_norm_backward>(library, "add_layer_norm_backward");
}

}  // namespace
}  // namespace fusewheel
