// gelu(gate) * up

#include <fusewheel/geometry.h>

#include "common/stream.h"

namespace fusewheel {
void gelu_mul_launch(const ElementwiseArgs<3>&, Stream);
void gelu_mul_backward_launch(const ElementwiseArgs<5>&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

#include "common/elementwise.h"
#include "gelu.h"

namespace fusewheel {
namespace {

template <typename Form>
struct GeluMul {
  template <typename A>
  __device__ void operator()(const A* in, A* out, A) const {
    out[0] = Form::value(in[0]) * in[1];
  }
};

template <typename Form>
struct GeluMulBackward {
  template <typename A>
  __device__ void operator()(const A* in, A* out, A) const {
    const A grad = in[0];
    const A gate = in[1];
    const A up = in[2];
    out[0] = grad * up * Form::slope(gate);
    out[1] = grad * Form::value(gate);
  }
};

}  // namespace

void gelu_mul_launch(const ElementwiseArgs<3>& args, Stream stream) {
  for_gelu(args.scalar, [&](auto form) {
    elementwise<1, 2>("gelu_mul", args, GeluMul<decltype(form)>{}, stream);
  });
}

void gelu_mul_backward_launch(const ElementwiseArgs<5>& args, Stream stream) {
  for_gelu(args.scalar, [&](auto form) {
    elementwise<2, 3>("gelu_mul_backward", args, GeluMulBackward<decltype(form)>{}, stream);
  });
}

}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include <fusewheel/activation/packed.h>

#include "common/glue.h"

namespace fusewheel {
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

#endif  // FUSEWHEEL_GLUE
