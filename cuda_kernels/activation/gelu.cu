// gelu(x)

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
