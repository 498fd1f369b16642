// y = x * transposed weight + bias, the weight stored in blocks

#include <fusewheel/kernel.h>
#include <fusewheel/linear/products.h>

namespace fusewheel {
namespace {

CheckedWeight check(const char* op, const Tensor& blocks, int64_t kind, Argument x) {
  check_floating(op, x);
  return CheckedWeight::stored_blocks(op, {"blocks", blocks}, kind, x);
}

Tensor linear_blocks(const Tensor& x, const Tensor& blocks, int64_t kind,
                     const std::optional<Tensor>& bias) {
  constexpr const char* op = "linear_blocks";
  Linear call(op, {"x", x}, check(op, blocks, kind, {"x", x}), bias);
  multiply(op, call);
  return call.y;
}

Tensor linear_blocks_backward(const Tensor& grad, const Tensor& blocks, int64_t kind) {
  constexpr const char* op = "linear_blocks_backward";
  LinearBackward call(op, {"grad", grad}, check(op, blocks, kind, {"grad", grad}));
  multiply(op, call);
  return call.grad_x;
}

FUSEWHEEL_KERNELS(library) {
  kernel<linear_blocks>(library, "linear_blocks");
  kernel<linear_blocks_backward>(library, "linear_blocks_backward");
}

}  // namespace
}  // namespace fusewheel
