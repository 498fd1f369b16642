// a * b + c

#include "parallel.h"
#include "simd/elementwise.h"

namespace fusewheel::FUSEWHEEL_ISA {

void muladd_range(const ElementwiseArgs<3>& args, int64_t begin, int64_t end) {
  elementwise<1, 2>(args, begin, end, [](const auto* in, auto* out, auto c) {
    out[0] = in[0] * in[1] + c;
  });
}

void muladd_launch(const ElementwiseArgs<3>& args) { parallel_elements(muladd_range, args); }

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(muladd_launch, ElementwiseArgs<3>);
