// a * b

#include <fusewheel/elementwise.h>
#include <fusewheel/kernel.h>

namespace fusewheel {

// Each kernel library has its own.
void mul_launch(const ElementwiseArgs<3>&, Stream);

namespace {

Tensor mul(const Tensor& a, const Tensor& b) {
  const Elementwise<1, 2> call("mul", {{{"a", a}, {"b", b}}});
  run("mul", mul_launch, call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<mul>(library, "mul");
}

}  // namespace
}  // namespace fusewheel
