// silu(gate) * up, silu(g) = g * sigmoid(g)

#include "common/elementwise.h"

namespace fusewheel {
namespace {

struct SiluMul {
  template <typename A>
  __device__ void operator()(const A* in, A* out, A) const {
    const A gate = in[0];
    out[0] = gate / (1 + exponential(-gate)) * in[1];
  }
};

struct SiluMulBackward {
  template <typename A>
  __device__ void operator()(const A* in, A* out, A) const {
    const A grad = in[0];
    const A gate = in[1];
    const A up = in[2];
    const A s = sigmoid(gate);
    out[0] = grad * up * (s * (1 + gate * (1 - s)));
    out[1] = grad * (gate * s);
  }
};

}  // namespace

void silu_mul_launch(const ElementwiseArgs<3>& args, Stream stream) {
  elementwise<1, 2>("silu_mul", args, SiluMul{}, stream);
}

void silu_mul_backward_launch(const ElementwiseArgs<5>& args, Stream stream) {
  elementwise<2, 3>("silu_mul_backward", args, SiluMulBackward{}, stream);
}

}  // namespace fusewheel
