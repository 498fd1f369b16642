// gelu(x)

#include "simd/elementwise.h"
#include "gelu.h"

FUSEWHEEL_DECLARE(void gelu_range(const ElementwiseArgs<2>&, int64_t, int64_t));
FUSEWHEEL_DECLARE(void gelu_backward_range(const ElementwiseArgs<3>&, int64_t, int64_t));

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

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include "parallel.h"

namespace fusewheel {
namespace {

Tensor gelu(const Tensor& x, bool tanh) {
  Elementwise<1, 1> call("gelu", {{{"x", x}}});
  call.args.scalar = tanh;
  launch(FUSEWHEEL_SELECT(gelu_range), call);
  return call.out[0];
}

Tensor gelu_backward(const Tensor& grad, const Tensor& x, bool tanh) {
  Elementwise<1, 2> call("gelu_backward", {{{"grad", grad}, {"x", x}}});
  call.args.scalar = tanh;
  launch(FUSEWHEEL_SELECT(gelu_backward_range), call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<gelu>(library, "gelu");
  kernel<gelu_backward>(library, "gelu_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
