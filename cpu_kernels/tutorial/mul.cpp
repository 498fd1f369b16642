// a * b

#include "parallel.h"
#include "simd/elementwise.h"

namespace fusewheel::FUSEWHEEL_ISA {

void mul_range(const ElementwiseArgs<3>& args, int64_t begin, int64_t end) {
  elementwise<1, 2>(args, begin, end, [](const auto* in, auto* out, auto) {
    out[0] = in[0] * in[1];
  });
}

void mul_launch(const ElementwiseArgs<3>& args) { parallel_elements(mul_range, args); }

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(mul_launch, ElementwiseArgs<3>);
