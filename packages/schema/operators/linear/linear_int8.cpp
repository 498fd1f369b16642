// y = x * transposed weight + bias, w = code * scale, 8-bit codes

#include <fusewheel/kernel.h>
#include <fusewheel/linear/products.h>

namespace fusewheel {
namespace {

CheckedWeight check(const char* op, const Tensor& qweight, const Tensor& scales, Argument x) {
  check_floating(op, x);
  return CheckedWeight::int8(op, {"qweight", qweight}, {"scales", scales}, x);
}

Tensor linear_int8(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                   const std::optional<Tensor>& bias, bool dynamic) {
  constexpr const char* op = "linear_int8";
  Linear call(op, {"x", x}, check(op, qweight, scales, {"x", x}), bias);
  multiply(op, call, dynamic ? call.weight.weight.group_size : 0);
  return call.y;
}

Tensor linear_int8_backward(const Tensor& grad, const Tensor& qweight, const Tensor& scales) {
  constexpr const char* op = "linear_int8_backward";
  LinearBackward call(op, {"grad", grad}, check(op, qweight, scales, {"grad", grad}));
  multiply(op, call);
  return call.grad_x;
}

FUSEWHEEL_KERNELS(library) {
  kernel<linear_int8>(library, "linear_int8");
  kernel<linear_int8_backward>(library, "linear_int8_backward");
}

}  // namespace
}  // namespace fusewheel
