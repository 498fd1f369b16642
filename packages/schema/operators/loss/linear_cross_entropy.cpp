// Cross entropy of x * transposed weight + bias and a row's class, and the gradients of all three

#include <fusewheel/kernel.h>
#include <fusewheel/loss/linear_cross_entropy.h>

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> linear_cross_entropy(
    const Tensor& x, const Tensor& weight, const Tensor& target, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& class_weight, int64_t ignore_index, double label_smoothing,
    double z_loss, double softcap, bool summed, bool needs_x, bool needs_weight, bool needs_bias) {
  constexpr const char* op = "linear_cross_entropy";
  LinearCrossEntropy call(op, x, weight, target, bias, class_weight,
                          {ignore_index, label_smoothing, z_loss, softcap},
                          {needs_x, needs_weight, needs_bias});
  check_targets(op, call.target, call.classes, ignore_index);
  compute(op, call);
  return {summed ? sum_of_losses(call.loss) : call.loss, call.grad_x,
          call.grad_weight, call.grad_bias};
}

std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy_backward(
    const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& target,
    const std::optional<Tensor>& bias, const std::optional<Tensor>& class_weight,
    int64_t ignore_index, double label_smoothing, double z_loss, double softcap, bool needs_x,
    bool needs_weight, bool needs_bias) {
  constexpr const char* op = "linear_cross_entropy_backward";
  LinearCrossEntropy call(op, x, weight, target, bias, class_weight,
                          {ignore_index, label_smoothing, z_loss, softcap},
                          {needs_x, needs_weight, needs_bias}, grad);
  check_targets(op, call.target, call.classes, ignore_index);
  compute(op, call);
  return {call.grad_x, call.grad_weight, call.grad_bias};
}

FUSEWHEEL_KERNELS(library) {
  kernel<linear_cross_entropy>(library, "linear_cross_entropy");
  kernel<linear_cross_entropy_backward>(library, "linear_cross_entropy_backward");
}

}  // namespace
}  // namespace fusewheel
