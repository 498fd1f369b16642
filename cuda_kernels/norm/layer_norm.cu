// y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var(x) + eps), row by row

#include <fusewheel/norm/layer_norm_args.h>

#include "layer_norm.h"

namespace fusewheel {
namespace {

struct LayerNormCall {
  LayerNormArgs norm;

  template <typename T, int V>
  __device__ void read(int64_t row, int64_t i, Accumulate<T> (&values)[V]) const {
    load(static_cast<const T*>(norm.x) + row * norm.x_stride + i, values);
  }

  bool has_vectors(int64_t) const { return true; }
};

struct LayerNormBackwardCall {
  LayerNormBackwardArgs norm;

  template <typename T, int V>
  __device__ void finish(int64_t, int64_t, Accumulate<T> (&)[V]) const {}

  bool has_vectors(int64_t) const { return true; }
};

}  // namespace

void layer_norm_launch(const LayerNormArgs& args, Stream stream) {
  layer_norm_forward("layer_norm", LayerNormCall{args}, stream);
}

void layer_norm_backward_launch(const LayerNormBackwardArgs& args, Stream stream) {
  layer_norm_backward("layer_norm_backward", LayerNormBackwardCall{args}, stream);
}

}  // namespace fusewheel
