// gelu(x)

#include "gelu.h"
#include "parallel.h"
#include "simd/elementwise.h"

namespace fusewheel::FUSEWHEEL_ISA {

void gelu_range(const ElementwiseArgs<2>& args, int64_t begin, int64_t end) {
  for_gelu(args.scalar, [&](auto form) {
    elementwise<1, 1>(args, begin, end, [form](const auto* in, auto* out, auto) {
      out[0] = gelu_value(form, in[0]);
    });
  });
}

void gelu_backward_range(const ElementwiseArgs<3>& args, int64_t begin, int64_t end) {
  for_gelu(args.scalar, [&](auto form) {
    elementwise<1, 2>(args, begin, end, [form](const auto* in, auto* out, auto) {
      out[0] = in[0] * gelu_slope(form, in[1]);
    });
  });
}

void gelu_launch(const ElementwiseArgs<2>& args) { parallel_elements(gelu_range, args); }

void gelu_backward_launch(const ElementwiseArgs<3>& args) {
  parallel_elements(gelu_backward_range, args);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(gelu_launch, ElementwiseArgs<2>);
FUSEWHEEL_LAUNCHER(gelu_backward_launch, ElementwiseArgs<3>);
