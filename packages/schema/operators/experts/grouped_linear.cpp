// y = x * transposed weight + bias, with a weight for each group of rows

#include <fusewheel/experts/grouped_linear.h>
#include <fusewheel/kernel.h>

namespace fusewheel {
namespace {

Tensor grouped_linear(const Tensor& x, const Tensor& weight, const Tensor& ends,
                      const std::optional<Tensor>& bias) {
  constexpr const char* op = "grouped_linear";
  const Argument input{"x", x};
  check_floating(op, input);
  GroupedLinear call(op, input, CheckedGroups::floating(op, {"weight", weight}, input), ends, false,
                     bias);
  multiply(op, call);
  return call.y;
}

Tensor grouped_linear_backward_x(const Tensor& grad, const Tensor& weight, const Tensor& ends) {
  constexpr const char* op = "grouped_linear_backward_x";
  const Argument input{"grad", grad};
  check_floating(op, input);
  GroupedLinear call(op, input, CheckedGroups::floating(op, {"weight", weight}, input), ends, true);
  multiply(op, call);
  return call.y;
}

Tensor grouped_linear_backward_weight(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                      const Tensor& ends) {
  constexpr const char* op = "grouped_linear_backward_weight";
  GroupedLinearBackwardWeight call(op, {"grad", grad}, {"x", x}, {"weight", weight}, ends);
  multiply(op, call);
  return call.grad_weight;
}

FUSEWHEEL_KERNELS(library) {
  kernel<grouped_linear>(library, "grouped_linear");
  kernel<grouped_linear_backward_x>(library, "grouped_linear_backward_x");
  kernel<grouped_linear_backward_weight>(library, "grouped_linear_backward_weight");
}

}  // namespace
}  // namespace fusewheel
