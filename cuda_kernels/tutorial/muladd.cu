// a * b + c

#include <fusewheel/geometry.h>

#include "common/stream.h"

namespace fusewheel {
void muladd_launch(const ElementwiseArgs<3>&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

#include "common/elementwise.h"

namespace fusewheel {
namespace {

struct MulAdd {
  template <typename A>
  __device__ void operator()(const A* in, A* out, A c) const {
    out[0] = in[0] * in[1] + c;
  }
};

}  // namespace

void muladd_launch(const ElementwiseArgs<3>& args, Stream stream) {
  elementwise<1, 2>("muladd", args, MulAdd{}, stream);
}

}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include "common/glue.h"

namespace fusewheel {
namespace {

Tensor muladd(const Tensor& a, const Tensor& b, double c) {
  Elementwise<1, 2> call("muladd", {{{"a", a}, {"b", b}}});
  call.args.scalar = c;
  run("muladd", muladd_launch, call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<muladd>(library, "muladd");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
