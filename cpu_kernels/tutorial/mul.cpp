// a * b

#include "simd/elementwise.h"

FUSEWHEEL_DECLARE(void mul_range(const ElementwiseArgs<3>&, int64_t, int64_t));

namespace fusewheel::FUSEWHEEL_ISA {

void mul_range(const ElementwiseArgs<3>& args, int64_t begin, int64_t end) {
  elementwise<1, 2>(args, begin, end, [](const auto* in, auto* out, auto) {
    out[0] = in[0] * in[1];
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include "parallel.h"

namespace fusewheel {
namespace {

Tensor mul(const Tensor& a, const Tensor& b) {
  const Elementwise<1, 2> call("mul", {{{"a", a}, {"b", b}}});
  launch(FUSEWHEEL_SELECT(mul_range), call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<mul>(library, "mul");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
