// y = x @ (qweight * scales)^T + bias

#include "matmul/matmul.h"

#if FUSEWHEEL_GLUE

#include <fusewheel/kernel.h>

namespace fusewheel {
namespace {

Tensor linear_int8(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                   const std::optional<Tensor>& bias, bool dynamic) {
  const char* op = "linear_int8";
  check_floating(op, {"x", x});
  Linear call(op, {"x", x},
              CheckedWeight::int8(op, {"qweight", qweight}, {"scales", scales}, {"x", x}), bias);
  matmul(call.x, call.weight.weight, call.bias, call.y,
         dynamic ? call.weight.weight.group_size : 0);
  return call.y;
}

Tensor linear_int8_backward(const Tensor& grad, const Tensor& qweight, const Tensor& scales) {
  const char* op = "linear_int8_backward";
  check_floating(op, {"grad", grad});
  LinearBackward call(
      op, {"grad", grad},
      CheckedWeight::int8(op, {"qweight", qweight}, {"scales", scales}, {"grad", grad}));
  matmul_transposed(call.grad, call.weight.weight, call.grad_x);
  return call.grad_x;
}

FUSEWHEEL_KERNELS(library) {
  kernel<linear_int8>(library, "linear_int8");
  kernel<linear_int8_backward>(library, "linear_int8_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
