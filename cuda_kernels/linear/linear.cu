// y = x * transposed weight + bias, in floating numbers

#include "linear.h"

namespace fusewheel {
void linear_launch(const LinearArgs&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

namespace fusewheel {

// float32 activations and a weight of half the width.
void linear_launch(const LinearArgs& args, Stream stream) {
  if (args.weight.dtype == Dtype::kBFloat16) {
    few_rows_launch<float, Floats<__nv_bfloat16>>("linear", args, stream);
  } else {
    few_rows_launch<float, Floats<__half>>("linear", args, stream);
  }
}

}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include "gemm.h"

namespace fusewheel {
namespace {

// Operands of one dtype are ATen's to multiply in it; others, exactly converted, in the dtype that
// sums have.
ScalarType product_type(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const bool one = x.scalar_type() == weight.scalar_type() &&
                   (!bias || bias->scalar_type() == x.scalar_type());
  return one ? x.scalar_type() : sum_type(x);
}

// The kernel that converts the weight as it reads it.
bool has_own_kernel(const Linear& call) {
  const Dtype weight = call.weight.weight.dtype;
  return call.x.count <= kFewRows && dtype_of(call.x.tensor) == Dtype::kFloat32 &&
         (weight == Dtype::kBFloat16 || weight == Dtype::kFloat16);
}

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  constexpr const char* op = "linear";
  const Argument input{"x", x};
  check_floating(op, input);
  const Linear call(op, input, CheckedWeight::floating(op, {"weight", weight}, input), bias);
  if (call.y.numel() == 0) {
    return call.y;
  }
  const OnDevice device(op, x);
  if (has_own_kernel(call)) {
    linear_launch(linear_args(call), device.stream());
  } else {
    aten_linear(call, as_type(weight, product_type(x, weight, call.bias)));
  }
  return call.y;
}

Tensor linear_backward_x(const Tensor& grad, const Tensor& weight) {
  constexpr const char* op = "linear_backward_x";
  const Argument gradient{"grad", grad};
  check_floating(op, gradient);
  const LinearBackward call(op, gradient,
                            CheckedWeight::floating(op, {"weight", weight}, gradient));
  if (call.grad_x.numel() > 0) {
    aten_linear_backward(call, as_type(weight, product_type(grad, weight, std::nullopt)));
  }
  return call.grad_x;
}

Tensor linear_backward_weight(const Tensor& grad, const Tensor& x, const Tensor& weight) {
  const LinearBackwardWeight call({"grad", grad}, {"x", x}, {"weight", weight});
  if (call.grad_weight.numel() > 0) {
    const ScalarType dtype = product_type(x, weight, std::nullopt);
    const auto shape = weight.sizes();
    const Tensor columns = transposed(as_matrix(call.x.tensor, call.x.count, shape[1]));
    rounded_linear(transposed(as_matrix(call.grad.tensor, call.grad.count, shape[0])),
                   as_type(columns, dtype), std::nullopt, call.grad_weight);
  }
  return call.grad_weight;
}

FUSEWHEEL_KERNELS(library) {
  kernel<linear>(library, "linear");
  kernel<linear_backward_x>(library, "linear_backward_x");
  kernel<linear_backward_weight>(library, "linear_backward_weight");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
