// y = x * transposed weight + bias, w = code * scale + zero, 4-bit codes

#include "linear.h"
#include "round.h"

namespace fusewheel {
void linear_int4_launch(const LinearArgs&, Stream);
void linear_int4_dequantise_launch(const LinearWeight&, const Panel&, Stream);
void linear_int4_round_launch(const RoundArgs&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

namespace fusewheel {

void linear_int4_launch(const LinearArgs& args, Stream stream) {
  few_rows_launch<Int4>("linear_int4", args, stream);
}

void linear_int4_dequantise_launch(const LinearWeight& weight, const Panel& panel, Stream stream) {
  dequantise_launch<Int4>("linear_int4", weight, panel, stream);
}

void linear_int4_round_launch(const RoundArgs& args, Stream stream) {
  round_launch("linear_int4", args, stream);
}

}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include "gemm.h"

namespace fusewheel {
namespace {

constexpr QuantisedLinear kLaunchers{linear_int4_launch, linear_int4_dequantise_launch,
                                     linear_int4_round_launch};

Tensor linear_int4(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                   const Tensor& zeros, int64_t group_size, const std::optional<Tensor>& bias,
                   bool dynamic) {
  constexpr const char* op = "linear_int4";
  const Argument input{"x", x};
  check_floating(op, input);
  Linear call(op, input,
              CheckedWeight::int4(op, {"qweight", qweight}, {"scales", scales}, {"zeros", zeros},
                                  group_size, input),
              bias);
  return kLaunchers.forward(op, call, dynamic ? kInt4Block : 0);
}

Tensor linear_int4_backward(const Tensor& grad, const Tensor& qweight, const Tensor& scales,
                            const Tensor& zeros, int64_t group_size) {
  constexpr const char* op = "linear_int4_backward";
  const Argument gradient{"grad", grad};
  check_floating(op, gradient);
  return kLaunchers.backward(
      op, {op, gradient,
           CheckedWeight::int4(op, {"qweight", qweight}, {"scales", scales}, {"zeros", zeros},
                               group_size, gradient)});
}

FUSEWHEEL_KERNELS(library) {
  kernel<linear_int4>(library, "linear_int4");
  kernel<linear_int4_backward>(library, "linear_int4_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
