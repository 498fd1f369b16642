// gelu(gate) * up

#include "simd/elementwise.h"
#include "gelu.h"

FUSEWHEEL_DECLARE(void gelu_mul_range(const ElementwiseArgs<3>&, int64_t, int64_t));
FUSEWHEEL_DECLARE(void gelu_mul_backward_range(const ElementwiseArgs<5>&, int64_t, int64_t));

namespace fusewheel::FUSEWHEEL_ISA {

void gelu_mul_range(const ElementwiseArgs<3>& args, int64_t begin, int64_t end) {
  for_gelu(args.scalar, [&](auto form) {
    elementwise<1, 2>(args, begin, end, [form](const auto* in, auto* out, auto) {
      out[0] = gelu_value(form, in[0]) * in[1];
    });
  });
}

void gelu_mul_backward_range(const ElementwiseArgs<5>& args, int64_t begin, int64_t end) {
  for_gelu(args.scalar, [&](auto form) {
    elementwise<2, 3>(args, begin, end, [form](const auto* in, auto* out, auto) {
      const auto grad = in[0];
      const auto gate = in[1];
      const auto up = in[2];
      out[0] = grad * up * gelu_slope(form, gate);
      out[1] = grad * gelu_value(form, gate);
    });
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include <fusewheel/activation/packed.h>

#include "parallel.h"

namespace fusewheel {
namespace {

Tensor gelu_mul(const Tensor& gate, const Tensor& up, bool tanh) {
  Elementwise<1, 2> call("gelu_mul", {{{"gate", gate}, {"up", up}}});
  call.args.scalar = tanh;
  launch(FUSEWHEEL_SELECT(gelu_mul_range), call);
  return call.out[0];
}

std::tuple<Tensor, Tensor> gelu_mul_backward(const Tensor& grad, const Tensor& gate,
                                             const Tensor& up, bool tanh) {
  Elementwise<2, 3> call("gelu_mul_backward", {{{"grad", grad}, {"gate", gate}, {"up", up}}});
  call.args.scalar = tanh;
  launch(FUSEWHEEL_SELECT(gelu_mul_backward_range), call);
  return {call.out[0], call.out[1]};
}

Tensor gelu_mul_packed(const Tensor& gate_up, bool tanh) {
  Packed call("gelu_mul_packed", {"gate_up", gate_up});
  call.args.scalar = tanh;
  launch(FUSEWHEEL_SELECT(gelu_mul_range), call);
  return call.out[0];
}

Tensor gelu_mul_packed_backward(const Tensor& grad, const Tensor& gate_up, bool tanh) {
  PackedBackward call("gelu_mul_packed_backward", {"grad", grad}, {"gate_up", gate_up});
  call.args.scalar = tanh;
  launch(FUSEWHEEL_SELECT(gelu_mul_backward_range), call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<gelu_mul>(library, "gelu_mul");
  kernel<gelu_mul_backward>(library, "gelu_mul_backward");
  kernel<gelu_mul_packed>(library, "gelu_mul_packed");
  kernel<gelu_mul_packed_backward>(library, "gelu_mul_packed_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
