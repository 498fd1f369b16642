// gelu(x)

#include <fusewheel/geometry.h>

#include "common/stream.h"

namespace fusewheel {
void gelu_launch(const ElementwiseArgs<2>&, Stream);
void gelu_backward_launch(const ElementwiseArgs<3>&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

#include "common/elementwise.h"
#include "gelu.h"

namespace fusewheel {
namespace {

template <typename Form>
struct Gelu {
  template <typename A>
  __device__ void operator()(const A* in, A* out, A) const {
    out[0] = Form::value(in[0]);
  }
};

template <typename Form>
struct GeluBackward {
  template <typename A>
  __device__ void operator()(const A* in, A* out, A) const {
    out[0] = in[0] * Form::slope(in[1]);
  }
};

}  // namespace

void gelu_launch(const ElementwiseArgs<2>& args, Stream stream) {
  for_gelu(args.scalar, [&](auto form) {
    elementwise<1, 1>("gelu", args, Gelu<decltype(form)>{}, stream);
  });
}

void gelu_backward_launch(const ElementwiseArgs<3>& args, Stream stream) {
  for_gelu(args.scalar, [&](auto form) {
    elementwise<1, 2>("gelu_backward", args, GeluBackward<decltype(form)>{}, stream);
  });
}

}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include "common/glue.h"

namespace fusewheel {
namespace {

Tensor gelu(const Tensor& x, bool tanh) {
  Elementwise<1, 1> call("gelu", {{{"x", x}}});
  call.args.scalar = tanh;
  run("gelu", gelu_launch, call);
  return call.out[0];
}

Tensor gelu_backward(const Tensor& grad, const Tensor& x, bool tanh) {
  Elementwise<1, 2> call("gelu_backward", {{{"grad", grad}, {"x", x}}});
  call.args.scalar = tanh;
  run("gelu_backward", gelu_backward_launch, call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<gelu>(library, "gelu");
  kernel<gelu_backward>(library, "gelu_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
