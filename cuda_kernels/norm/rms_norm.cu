// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), row by row

#include <fusewheel/norm/rms_norm.h>

#include "common/stream.h"

namespace fusewheel {
void rms_norm_launch(const RmsNormArgs&, Stream);
void rms_norm_backward_launch(const RmsNormBackwardArgs&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

#include "rms_norm.h"

namespace fusewheel {
namespace {

struct RmsNormCall {
  RmsNormArgs norm;

  template <typename T, int V>
  __device__ void read(int64_t row, int64_t i, Accumulate<T> (&values)[V]) const {
    load(static_cast<const T*>(norm.x) + row * norm.x_stride + i, values);
  }

  bool has_vectors(int64_t) const { return true; }
};

struct RmsNormBackwardCall {
  RmsNormBackwardArgs norm;

  template <typename T, int V>
  __device__ void finish(int64_t, int64_t, Accumulate<T> (&)[V]) const {}

  bool has_vectors(int64_t) const { return true; }
};

}  // namespace

void rms_norm_launch(const RmsNormArgs& args, Stream stream) {
  rms_norm_forward("rms_norm", RmsNormCall{args}, stream);
}

void rms_norm_backward_launch(const RmsNormBackwardArgs& args, Stream stream) {
  rms_norm_backward("rms_norm_backward", RmsNormBackwardCall{args}, stream);
}

}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include "common/glue.h"

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, const Tensor& weight, double eps,
                                    int64_t cast) {
  const RmsNorm call("rms_norm", {"x", x}, weight, eps, cast);
  if (call.args.count > 0) {
    rms_norm_launch(call.args, OnDevice("rms_norm", x).stream());
  }
  return {call.y, call.rstd};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& x,
                                             const Tensor& weight, const Tensor& rstd,
                                             int64_t cast) {
  const RmsNormBackward call("rms_norm_backward", grad, {"x", x}, weight, rstd, cast,
                             device_row_chunks);
  if (call.args.size > 0) {
    rms_norm_backward_launch(call.args, OnDevice("rms_norm_backward", x).stream());
  }
  return {call.grad_x, call.grad_weight};
}

FUSEWHEEL_KERNELS(library) {
  kernel<rms_norm>(library, "rms_norm");
  kernel<rms_norm_backward>(library, "rms_norm_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
