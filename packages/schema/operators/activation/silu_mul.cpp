// silu(gate) * up, silu(g) = g * sigmoid(g)

#include <fusewheel/activation/packed.h>
#include <fusewheel/kernel.h>

namespace fusewheel {

// Each kernel library has its own.
void silu_mul_launch(const ElementwiseArgs<3>&, Stream);
void silu_mul_backward_launch(const ElementwiseArgs<5>&, Stream);

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
