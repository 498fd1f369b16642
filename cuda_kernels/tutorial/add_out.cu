// out = a + b, into the caller's tensor

#include "common/elementwise.h"

namespace fusewheel {
namespace {

struct Add {
  template <typename A>
  __device__ void operator()(const A* in, A* out, A) const {
    out[0] = in[0] + in[1];
  }
};

}  // namespace

void add_out_launch(const ElementwiseArgs<3>& args, Stream stream) {
  elementwise<1, 2>("add_out", args, Add{}, stream);
}

}  // namespace fusewheel
