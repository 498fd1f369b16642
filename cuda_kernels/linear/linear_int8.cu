// y = x * transposed weight + bias, w = code * scale, 8-bit codes

#include "linear.h"
#include "round.h"

namespace fusewheel {
void linear_int8_launch(const LinearArgs&, Stream);
void linear_int8_dequantise_launch(const LinearWeight&, const Panel&, Stream);
void linear_int8_round_launch(const RoundArgs&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

namespace fusewheel {

void linear_int8_launch(const LinearArgs& args, Stream stream) {
  few_rows_launch<Int8>("linear_int8", args, stream);
}

void linear_int8_dequantise_launch(const LinearWeight& weight, const Panel& panel, Stream stream) {
  dequantise_launch<Int8>("linear_int8", weight, panel, stream);
}

void linear_int8_round_launch(const RoundArgs& args, Stream stream) {
  round_launch("linear_int8", args, stream);
}

}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include "gemm.h"

namespace fusewheel {
namespace {

constexpr QuantisedLinear kLaunchers{linear_int8_launch, linear_int8_dequantise_launch,
                                     linear_int8_round_launch};

Tensor linear_int8(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                   const std::optional<Tensor>& bias, bool dynamic) {
  constexpr const char* op = "linear_int8";
  const Argument input{"x", x};
  check_floating(op, input);
  const auto weight =
      CheckedWeight::int8(op, {"qweight", qweight}, {"scales", scales}, input);
  Linear call(op, input, weight, bias);
  return kLaunchers.forward(op, call, dynamic ? weight.weight.group_size : 0);
}

Tensor linear_int8_backward(const Tensor& grad, const Tensor& qweight, const Tensor& scales) {
  constexpr const char* op = "linear_int8_backward";
  const Argument gradient{"grad", grad};
  check_floating(op, gradient);
  return kLaunchers.backward(
      op, {op, gradient,
           CheckedWeight::int8(op, {"qweight", qweight}, {"scales", scales}, gradient)});
}

FUSEWHEEL_KERNELS(library) {
  kernel<linear_int8>(library, "linear_int8");
  kernel<linear_int8_backward>(library, "linear_int8_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
