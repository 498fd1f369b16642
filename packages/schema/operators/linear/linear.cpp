// y = x * transposed weight + bias, in floating numbers

#include <fusewheel/kernel.h>
#include <fusewheel/linear/products.h>

namespace fusewheel {
namespace {

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  constexpr const char* op = "linear";
  const Argument input{"x", x};
  check_floating(op, input);
  Linear call(op, input, CheckedWeight::floating(op, {"weight", weight}, input), bias);
  multiply(op, call);
  return call.y;
}

Tensor linear_backward_x(const Tensor& grad, const Tensor& weight) {
  constexpr const char* op = "linear_backward_x";
  const Argument gradient{"grad", grad};
  check_floating(op, gradient);
  LinearBackward call(op, gradient, CheckedWeight::floating(op, {"weight", weight}, gradient));
  multiply(op, call);
  return call.grad_x;
}

Tensor linear_backward_weight(const Tensor& grad, const Tensor& x, const Tensor& weight) {
  LinearBackwardWeight call({"grad", grad}, {"x", x}, {"weight", weight});
  multiply("linear_backward_weight", call);
  return call.grad_weight;
}

FUSEWHEEL_KERNELS(library) {
  kernel<linear>(library, "linear");
  kernel<linear_backward_x>(library, "linear_backward_x");
  kernel<linear_backward_weight>(library, "linear_backward_weight");
}

}  // namespace
}  // namespace fusewheel
