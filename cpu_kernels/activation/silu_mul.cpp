// silu(gate) * up, silu(g) = g * sigmoid(g)

#include "simd/elementwise.h"
#include "simd/math.h"

FUSEWHEEL_DECLARE(void silu_mul_range(const ElementwiseArgs<3>&, int64_t, int64_t));
FUSEWHEEL_DECLARE(void silu_mul_backward_range(const ElementwiseArgs<5>&, int64_t, int64_t));

namespace fusewheel::FUSEWHEEL_ISA {

void silu_mul_range(const ElementwiseArgs<3>& args, int64_t begin, int64_t end) {
  elementwise<1, 2>(args, begin, end, [](const auto* in, auto* out, auto) {
    const auto gate = in[0];
    out[0] = gate / (1 + exp(-gate)) * in[1];
  });
}

void silu_mul_backward_range(const ElementwiseArgs<5>& args, int64_t begin, int64_t end) {
  elementwise<2, 3>(args, begin, end, [](const auto* in, auto* out, auto) {
    const auto grad = in[0];
    const auto gate = in[1];
    const auto up = in[2];
    const auto s = sigmoid(gate);
    out[0] = grad * up * (s * (1 + gate * (1 - s)));
    out[1] = grad * (gate * s);
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include <fusewheel/activation/packed.h>

#include "parallel.h"

namespace fusewheel {
namespace {

Tensor silu_mul(const Tensor& gate, const Tensor& up) {
  const Elementwise<1, 2> call("silu_mul", {{{"gate", gate}, {"up", up}}});
  launch(FUSEWHEEL_SELECT(silu_mul_range), call);
  return call.out[0];
}

std::tuple<Tensor, Tensor> silu_mul_backward(const Tensor& grad, const Tensor& gate,
                                             const Tensor& up) {
  const Elementwise<2, 3> call("silu_mul_backward",
                               {{{"grad", grad}, {"gate", gate}, {"up", up}}});
  launch(FUSEWHEEL_SELECT(silu_mul_backward_range), call);
  return {call.out[0], call.out[1]};
}

Tensor silu_mul_packed(const Tensor& gate_up) {
  const Packed call("silu_mul_packed", {"gate_up", gate_up});
  launch(FUSEWHEEL_SELECT(silu_mul_range), call);
  return call.out[0];
}

Tensor silu_mul_packed_backward(const Tensor& grad, const Tensor& gate_up) {
  const PackedBackward call("silu_mul_packed_backward", {"grad", grad}, {"gate_up", gate_up});
  launch(FUSEWHEEL_SELECT(silu_mul_backward_range), call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<silu_mul>(library, "silu_mul");
  kernel<silu_mul_backward>(library, "silu_mul_backward");
  kernel<silu_mul_packed>(library, "silu_mul_packed");
  kernel<silu_mul_packed_backward>(library, "silu_mul_packed_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
