// y = x @ (codes * scales + zeros)^T + bias, two 4-bit codes a byte

#include "matmul/matmul.h"

#if FUSEWHEEL_GLUE

#include <fusewheel/kernel.h>

namespace fusewheel {
namespace {

CheckedWeight check(const char* op, const Tensor& qweight, const Tensor& scales,
                    const Tensor& zeros, int64_t group_size, Argument x) {
  check_floating(op, x);
  return CheckedWeight::int4(op, {"qweight", qweight}, {"scales", scales}, {"zeros", zeros},
                             group_size, x);
}

Tensor linear_int4(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                   const Tensor& zeros, int64_t group_size, const std::optional<Tensor>& bias,
                   bool dynamic) {
  const char* op = "linear_int4";
  Linear call(op, {"x", x}, check(op, qweight, scales, zeros, group_size, {"x", x}), bias);
  matmul(call.x, call.weight.weight, call.bias, call.y,
         dynamic ? kInt4Block : 0);
  return call.y;
}

Tensor linear_int4_backward(const Tensor& grad, const Tensor& qweight, const Tensor& scales,
                            const Tensor& zeros, int64_t group_size) {
  const char* op = "linear_int4_backward";
  LinearBackward call(op, {"grad", grad},
                      check(op, qweight, scales, zeros, group_size, {"grad", grad}));
  matmul_transposed(call.grad, call.weight.weight, call.grad_x);
  return call.grad_x;
}

FUSEWHEEL_KERNELS(library) {
  kernel<linear_int4>(library, "linear_int4");
  kernel<linear_int4_backward>(library, "linear_int4_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
