// y = x * transposed weight + bias, with a weight in stored blocks for each group of rows

#include <fusewheel/experts/grouped_linear.h>
#include <fusewheel/kernel.h>

namespace fusewheel {
namespace {

CheckedGroups check(const char* op, const Tensor& blocks, int64_t kind, Argument x) {
  check_floating(op, x);
  return CheckedGroups::stored_blocks(op, {"blocks", blocks}, kind, x);
}

Tensor grouped_linear_blocks(const Tensor& x, const Tensor& blocks, int64_t kind,
                             const Tensor& ends, const std::optional<Tensor>& bias) {
  constexpr const char* op = "grouped_linear_blocks";
  const Argument input{"x", x};
  GroupedLinear call(op, input, check(op, blocks, kind, input), ends, false, bias);
  multiply(op, call);
  return call.y;
}

Tensor grouped_linear_blocks_backward(const Tensor& grad, const Tensor& blocks, int64_t kind,
                                      const Tensor& ends) {
  constexpr const char* op = "grouped_linear_blocks_backward";
  const Argument input{"grad", grad};
  GroupedLinear call(op, input, check(op, blocks, kind, input), ends, true);
  multiply(op, call);
  return call.y;
}

FUSEWHEEL_KERNELS(library) {
  kernel<grouped_linear_blocks>(library, "grouped_linear_blocks");
  kernel<grouped_linear_blocks_backward>(library, "grouped_linear_blocks_backward");
}

}  // namespace
}  // namespace fusewheel
