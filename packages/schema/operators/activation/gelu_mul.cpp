// gelu(gate) * up

#include <fusewheel/activation/packed.h>
#include <fusewheel/kernel.h>

namespace fusewheel {

// Each kernel library has its own.
void gelu_mul_launch(const ElementwiseArgs<3>&, Stream);
void gelu_mul_backward_launch(const ElementwiseArgs<5>&, Stream);

namespace {

Tensor gelu_mul(const Tensor& gate, const Tensor& up, bool tanh) {
  Elementwise<1, 2> call("gelu_mul", {{{"gate", gate}, {"up", up}}});
  call.args.scalar = tanh;
  run("gelu_mul", gelu_mul_launch, call);
  return call.out[0];
}

std::tuple<Tensor, Tensor> gelu_mul_backward(const Tensor& grad, const Tensor& gate,
                                             const Tensor& up, bool tanh) {
  Elementwise<2, 3> call("gelu_mul_backward", {{{"grad", grad}, {"gate", gate}, {"up", up}}});
  call.args.scalar = tanh;
  run("gelu_mul_backward", gelu_mul_backward_launch, call);
  return {call.out[0], call.out[1]};
}

Tensor gelu_mul_packed(const Tensor& gate_up, bool tanh) {
  Packed call("gelu_mul_packed", {"gate_up", gate_up});
  call.args.scalar = tanh;
  run("gelu_mul_packed", gelu_mul_launch, call);
  return call.out[0];
}

Tensor gelu_mul_packed_backward(const Tensor& grad, const Tensor& gate_up, bool tanh) {
  PackedBackward call("gelu_mul_packed_backward", {"grad", grad}, {"gate_up", gate_up});
  call.args.scalar = tanh;
  run("gelu_mul_packed_backward", gelu_mul_backward_launch, call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<gelu_mul>(library, "gelu_mul");
  kernel<gelu_mul_backward>(library, "gelu_mul_backward");
  kernel<gelu_mul_packed>(library, "gelu_mul_packed");
  kernel<gelu_mul_packed_backward>(library, "gelu_mul_packed_backward");
}

}  // namespace
}  // namespace fusewheel
