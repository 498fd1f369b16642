// sum = x + residual, y = rms_norm(sum), row by row

#include <fusewheel/add_rms_norm.h>

#include "common/stream.h"

namespace fusewheel {
void add_rms_norm_launch(const AddRmsNormArgs&, Stream);
void add_rms_norm_backward_launch(const AddRmsNormBackwardArgs&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

#include "common/rms_norm.h"

namespace fusewheel {
namespace {

struct AddRmsNormCall : AddRmsNormArgs {
  // Each thread reads back the elements of the sum that it wrote itself.
  template <typename T, int V>
  __device__ void read(int64_t row, int64_t i, Accumulate<T> (&values)[V]) const {
    Accumulate<T> addends[V];
    load(static_cast<const T*>(x) + row * x_stride + i, values);
    load(static_cast<const T*>(residual) + row * residual_stride + i, addends);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      values[k] = round_to<T>(values[k] + addends[k]);
    }
    store(static_cast<T*>(sum) + row * norm.size + i, values);
  }

  bool has_vectors(int64_t lanes) const {
    return fusewheel::has_vectors(x, x_stride, lanes) &&
           fusewheel::has_vectors(residual, residual_stride, lanes);
  }
};

struct AddRmsNormBackwardCall : AddRmsNormBackwardArgs {
  template <typename T, int V>
  __device__ void finish(int64_t row, int64_t i, Accumulate<T> (&grad_x)[V]) const {
    Accumulate<T> own[V];
    load(static_cast<const T*>(grad_sum) + row * grad_sum_stride + i, own);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      grad_x[k] += own[k];
    }
  }

  bool has_vectors(int64_t lanes) const {
    return fusewheel::has_vectors(grad_sum, grad_sum_stride, lanes);
  }
};

}  // namespace

void add_rms_norm_launch(const AddRmsNormArgs& args, Stream stream) {
  rms_norm_forward("add_rms_norm", AddRmsNormCall{args}, stream);
}

void add_rms_norm_backward_launch(const AddRmsNormBackwardArgs& args, Stream stream) {
  rms_norm_backward("add_rms_norm_backward", AddRmsNormBackwardCall{args}, stream);
}

}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include "common/glue.h"

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual,
                                                const Tensor& weight, double eps, int64_t cast) {
  const AddRmsNorm call(x, residual, weight, eps, cast);
  if (call.args.norm.count > 0) {
    add_rms_norm_launch(call.args, OnDevice("add_rms_norm", x).stream());
  }
  return {call.norm.y, call.sum, call.norm.rstd};
}

std::tuple<Tensor, Tensor> add_rms_norm_backward(const Tensor& grad, const Tensor& grad_sum,
                                                 const Tensor& sum, const Tensor& weight,
                                                 const Tensor& rstd, int64_t cast) {
  const AddRmsNormBackward call(grad, grad_sum, sum, weight, rstd, cast, device_row_chunks);
  if (call.args.norm.size > 0) {
    add_rms_norm_backward_launch(call.args, OnDevice("add_rms_norm_backward", sum).stream());
  }
  return {call.norm.grad_x, call.norm.grad_weight};
}

FUSEWHEEL_KERNELS(library) {
  kernel<add_rms_norm>(library, "add_rms_norm");
  kernel<add_rms_norm_backward>(library, "add_rms_norm_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
