// out = a + b, into the caller's tensor

#include "simd/elementwise.h"

FUSEWHEEL_DECLARE(void add_range(const ElementwiseArgs<3>&, int64_t, int64_t));

namespace fusewheel::FUSEWHEEL_ISA {

void add_range(const ElementwiseArgs<3>& args, int64_t begin, int64_t end) {
  elementwise<1, 2>(args, begin, end, [](const auto* in, auto* out, auto) {
    out[0] = in[0] + in[1];
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include "parallel.h"

namespace fusewheel {
namespace {

void add_out(const Tensor& a, const Tensor& b, const Tensor& out) {
  const Tensor from_a = unaliased("add_out", {"a", a}, {"out", out});
  const Tensor from_b = unaliased("add_out", {"b", b}, {"out", out});
  const Elementwise<1, 2> call("add_out", {"out", out}, {{{"a", from_a}, {"b", from_b}}});
  launch(FUSEWHEEL_SELECT(add_range), call);
}

FUSEWHEEL_KERNELS(library) {
  kernel<add_out>(library, "add_out");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
