// gelu(gate) * up

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
