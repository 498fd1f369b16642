// out = a + b, into the caller's tensor

#include "parallel.h"
#include "simd/elementwise.h"

namespace fusewheel::FUSEWHEEL_ISA {

void add_range(const ElementwiseArgs<3>& args, int64_t begin, int64_t end) {
  elementwise<1, 2>(args, begin, end, [](const auto* in, auto* out, auto) {
    out[0] = in[0] + in[1];
  });
}

void add_out_launch(const ElementwiseArgs<3>& args) { parallel_elements(add_range, args); }

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(add_out_launch, ElementwiseArgs<3>);
