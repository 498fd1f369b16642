// silu(gate) * up, silu(g) = g * sigmoid(g)

#include "parallel.h"
#include "simd/elementwise.h"
#include "simd/math.h"

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

void silu_mul_launch(const ElementwiseArgs<3>& args) { parallel_elements(silu_mul_range, args); }

void silu_mul_backward_launch(const ElementwiseArgs<5>& args) {
  parallel_elements(silu_mul_backward_range, args);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(silu_mul_launch, ElementwiseArgs<3>);
FUSEWHEEL_LAUNCHER(silu_mul_backward_launch, ElementwiseArgs<5>);
