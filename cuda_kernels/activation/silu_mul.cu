// silu(gate) * up, silu(g) = g * sigmoid(g)

#include <fusewheel/geometry.h>

#include "common/stream.h"

namespace fusewheel {
void silu_mul_launch(const ElementwiseArgs<3>&, Stream);
void silu_mul_backward_launch(const ElementwiseArgs<5>&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

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

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include <fusewheel/activation/packed.h>

#include "common/glue.h"

namespace fusewheel {
namespace {

Tensor silu_mul(const Tensor& gate, const Tensor& up) {
  const Elementwise<1, 2> call("silu_mul", {{{"gate", gate}, {"up", up}}});
  run("silu_mul", silu_mul_launch, call);
  return call.out[0];
}

std::tuple<Tensor, Tensor> silu_mul_backward(const Tensor& grad, const Tensor& gate,
                                             const Tensor& up) {
  const Elementwise<2, 3> call("silu_mul_backward", {{{"grad", grad}, {"gate", gate}, {"up", up}}});
  run("silu_mul_backward", silu_mul_backward_launch, call);
  return {call.out[0], call.out[1]};
}

Tensor silu_mul_packed(const Tensor& gate_up) {
  const Packed call("silu_mul_packed", {"gate_up", gate_up});
  run("silu_mul_packed", silu_mul_launch, call);
  return call.out[0];
}

Tensor silu_mul_packed_backward(const Tensor& grad, const Tensor& gate_up) {
  const PackedBackward call("silu_mul_packed_backward", {"grad", grad}, {"gate_up", gate_up});
  run("silu_mul_packed_backward", silu_mul_backward_launch, call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<silu_mul>(library, "silu_mul");
  kernel<silu_mul_backward>(library, "silu_mul_backward");
  kernel<silu_mul_packed>(library, "silu_mul_packed");
  kernel<silu_mul_packed_backward>(library, "silu_mul_packed_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
