// a * b

#include <fusewheel/geometry.h>

#include "common/stream.h"

namespace fusewheel {
void mul_launch(const ElementwiseArgs<3>&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

#include "common/elementwise.h"

namespace fusewheel {
namespace {

struct Mul {
  template <typename A>
  __device__ void operator()(const A* in, A* out, A) const {
    out[0] = in[0] * in[1];
  }
};

}  // namespace

void mul_launch(const ElementwiseArgs<3>& args, Stream stream) {
  elementwise<1, 2>("mul", args, Mul{}, stream);
}

}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include "common/glue.h"

namespace fusewheel {
namespace {

Tensor mul(const Tensor& a, const Tensor& b) {
  const Elementwise<1, 2> call("mul", {{{"a", a}, {"b", b}}});
  run("mul", mul_launch, call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<mul>(library, "mul");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
