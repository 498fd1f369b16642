// out = a + b, into the caller's tensor

#include <fusewheel/elementwise.h>
#include <fusewheel/kernel.h>

namespace fusewheel {

// Each kernel library has its own.
void add_out_launch(const ElementwiseArgs<3>&, Stream);

namespace {

void add_out(const Tensor& a, const Tensor& b, const Tensor& out) {
  const Tensor from_a = unaliased("add_out", {"a", a}, {"out", out});
  const Tensor from_b = unaliased("add_out", {"b", b}, {"out", out});
  const Elementwise<1, 2> call("add_out", {"out", out}, {{{"a", from_a}, {"b", from_b}}});
  run("add_out", add_out_launch, call);
}

FUSEWHEEL_KERNELS(library) {
  kernel<add_out>(library, "add_out");
}

}  // namespace
}  // namespace fusewheel
