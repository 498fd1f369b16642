// a * b + c

#include <fusewheel/elementwise.h>
#include <fusewheel/kernel.h>

namespace fusewheel {

// Each kernel library has its own.
void muladd_launch(const ElementwiseArgs<3>&, Stream);

namespace {

Tensor muladd(const Tensor& a, const Tensor& b, double c) {
  Elementwise<1, 2> call("muladd", {{{"a", a}, {"b", b}}});
  call.args.scalar = c;
  run("muladd", muladd_launch, call);
  return call.out[0];
}

FUSEWHEEL_KERNELS(library) {
  kernel<muladd>(library, "muladd");
}

}  // namespace
}  // namespace fusewheel
