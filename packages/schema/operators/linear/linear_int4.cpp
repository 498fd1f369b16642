// y = x * transposed weight + bias, w = code * scale + zero, 4-bit codes

#include <fusewheel/kernel.h>
#include <fusewheel/linear/products.h>

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
  constexpr const char* op = "linear_int4";
  Linear call(op, {"x", x}, check(op, qweight, scales, zeros, group_size, {"x", x}), bias);
  multiply(op, call, dynamic ? kInt4Block : 0);
  return call.y;
}

Tensor linear_int4_backward(const Tensor& grad, const Tensor& qweight, const Tensor& scales,
                            const Tensor& zeros, int64_t group_size) {
  constexpr const char* op = "linear_int4_backward";
  LinearBackward call(op, {"grad", grad},
                      check(op, qweight, scales, zeros, group_size, {"grad", grad}));
  multiply(op, call);
  return call.grad_x;
}

FUSEWHEEL_KERNELS(library) {
  kernel<linear_int4>(library, "linear_int4");
  kernel<linear_int4_backward>(library, "linear_int4_backward");
}

}  // namespace
}  // namespace fusewheel
