// gelu(gate) * up

#include "gelu.h"
#include "parallel.h"
#include "simd/elementwise.h"

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

void gelu_mul_launch(const ElementwiseArgs<3>& args) { parallel_elements(gelu_mul_range, args); }

void gelu_mul_backward_launch(const ElementwiseArgs<5>& args) {
  parallel_elements(gelu_mul_backward_range, args);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(gelu_mul_launch, ElementwiseArgs<3>);
FUSEWHEEL_LAUNCHER(gelu_mul_backward_launch, ElementwiseArgs<5>);
