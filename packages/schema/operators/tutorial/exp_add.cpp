// exp(x) + c

#include <fusewheel/elementwise.h>
#include <fusewheel/kernel.h>

namespace fusewheel {

// Each kernel library has its own.
void exp_add_launch(const ElementwiseArgs<2>&, Stream);

namespace {

Tensor exp_add(const Tensor& x, double c) {
  Elementwise<1, 1> call("exp_add", {{{"x", x}}});
  call.args.scalar = c;
  run("exp_add", exp_add_launch, call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<exp_add>(library, "exp_add");
}

}  // namespace
}  // namespace fusewheel
