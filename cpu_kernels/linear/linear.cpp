// y = x @ weight^T + bias with a floating weight of any precision

#include "matmul/matmul.h"

#if FUSEWHEEL_GLUE

#include <fusewheel/aten.h>
#include <fusewheel/kernel.h>

namespace fusewheel {
namespace {

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  check_floating("linear", {"x", x});
  Linear call("linear", {"x", x},
              CheckedWeight::floating("linear", {"weight", weight}, {"x", x}), bias);
  matmul(call.x, call.weight.weight, call.bias, call.y);
  return call.y;
}

Tensor linear_backward_x(const Tensor& grad, const Tensor& weight) {
  const char* op = "linear_backward_x";
  check_floating(op, {"grad", grad});
  LinearBackward call(op, {"grad", grad},
                      CheckedWeight::floating(op, {"weight", weight}, {"grad", grad}));
  matmul_transposed(call.grad, call.weight.weight, call.grad_x);
  return call.grad_x;
}

Tensor linear_backward_weight(const Tensor& grad, const Tensor& x, const Tensor& weight) {
  const LinearBackwardWeight call({"grad", grad}, {"x", x}, {"weight", weight});
  // Sums of float64 are in float64, be the weight narrower or not.
  Tensor sums = x.scalar_type() == ScalarType::Double
                    ? empty_contiguous(weight.sizes(), ScalarType::Double, weight)
                    : call.grad_weight;
  matmul_gradient(call.grad, call.x, sums);
  return as_type(sums, weight.scalar_type());
}

FUSEWHEEL_KERNELS(library) {
  kernel<linear>(library, "linear");
  kernel<linear_backward_x>(library, "linear_backward_x");
  kernel<linear_backward_weight>(library, "linear_backward_weight");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
