// gelu(x)

#include <fusewheel/elementwise.h>
#include <fusewheel/kernel.h>

namespace fusewheel {

// Each kernel library has its own.
void gelu_launch(const ElementwiseArgs<2>&, Stream);
void gelu_backward_launch(const ElementwiseArgs<3>&, Stream);

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
