// exp(x) + c

#include "simd/elementwise.h"
#include "simd/math.h"

FUSEWHEEL_DECLARE(void exp_add_range(const ElementwiseArgs<2>&, int64_t, int64_t));

namespace fusewheel::FUSEWHEEL_ISA {

void exp_add_range(const ElementwiseArgs<2>& args, int64_t begin, int64_t end) {
  elementwise<1, 1>(args, begin, end, [](const auto* in, auto* out, auto c) {
    out[0] = exp(in[0]) + c;
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include "parallel.h"

namespace fusewheel {
namespace {

Tensor exp_add(const Tensor& x, double c) {
  Elementwise<1, 1> call("exp_add", {{{"x", x}}});
  call.args.scalar = c;
  launch(FUSEWHEEL_SELECT(exp_add_range), call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<exp_add>(library, "exp_add");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
