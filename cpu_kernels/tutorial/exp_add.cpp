// exp(x) + c

#include "parallel.h"
#include "simd/elementwise.h"
#include "simd/math.h"

namespace fusewheel::FUSEWHEEL_ISA {

void exp_add_range(const ElementwiseArgs<2>& args, int64_t begin, int64_t end) {
  elementwise<1, 1>(args, begin, end, [](const auto* in, auto* out, auto c) {
    out[0] = exp(in[0]) + c;
  });
}

void exp_add_launch(const ElementwiseArgs<2>& args) { parallel_elements(exp_add_range, args); }

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(exp_add_launch, ElementwiseArgs<2>);
