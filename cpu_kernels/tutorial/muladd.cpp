// a * b + c

#include "simd/elementwise.h"

FUSEWHEEL_DECLARE(void muladd_range(const ElementwiseArgs<3>&, int64_t, int64_t));

namespace fusewheel::FUSEWHEEL_ISA {

void muladd_range(const ElementwiseArgs<3>& args, int64_t begin, int64_t end) {
  elementwise<1, 2>(args, begin, end, [](const auto* in, auto* out, auto c) {
    out[0] = in[0] * in[1] + c;
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include "parallel.h"

namespace fusewheel {
namespace {

Tensor muladd(const Tensor& a, const Tensor& b, double c) {
  Elementwise<1, 2> call("muladd", {{{"a", a}, {"b", b}}});
  call.args.scalar = c;
  launch(FUSEWHEEL_SELECT(muladd_range), call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<muladd>(library, "muladd");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
