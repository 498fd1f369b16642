// a * b

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
