// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), row by row

#include <fusewheel/norm/rms_norm_args.h>

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
