// exp(x) + c

#include <fusewheel/geometry.h>

#include "common/stream.h"

namespace fusewheel {
void exp_add_launch(const ElementwiseArgs<2>&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

#include "common/elementwise.h"

namespace fusewheel {
namespace {

struct ExpAdd {
  template <typename A>
  __device__ void operator()(const A* in, A* out, A c) const {
    out[0] = exponential(in[0]) + c;
  }
};

}  // namespace

void exp_add_launch(const ElementwiseArgs<2>& args, Stream stream) {
  elementwise<1, 1>("exp_add", args, ExpAdd{}, stream);
}

}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include "common/glue.h"

namespace fusewheel {
namespace {

Tensor exp_add(const Tensor& x, double c) {
  Elementwise<1, 1> call("exp_add", {{{"x", x}}});
  call.args.scalar = c;
  run("exp_add", exp_add_launch, call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<exp_add>(library, "exp_add");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
