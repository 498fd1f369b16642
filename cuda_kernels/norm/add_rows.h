// sum = x + residual, vector by vector: what a norm of a sum adds to the norm (see rms_norm.h and
// layer_norm.h). Args is an operator's struct with `add` and `norm` in it.
#pragma once

#include <fusewheel/norm/add_rows_args.h>

#include "common/rows.h"

namespace fusewheel {
namespace {

template <typename Args>
struct OfSum : Args {
  // The sum as it is stored. Each thread reads back the elements that it wrote itself.
  template <typename T, int V>
  __device__ void read(int64_t row, int64_t i, Accumulate<T> (&values)[V]) const {
    const AddRowsArgs& add = this->add;
    Accumulate<T> addends[V];
    load(static_cast<const T*>(add.x) + row * add.x_stride + i, values);
    load(static_cast<const T*>(add.residual) + row * add.residual_stride + i, addends);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      values[k] = round_to<T>(values[k] + addends[k]);
    }
    store(static_cast<T*>(add.sum) + row * add.size + i, values);
  }

  bool has_vectors(int64_t lanes) const {
    const AddRowsArgs& add = this->add;
    return fusewheel::has_vectors(add.x, add.x_stride, lanes) &&
           fusewheel::has_vectors(add.residual, add.residual_stride, lanes);
  }
};

template <typename Args>
struct OfSumBackward : Args {
  template <typename T, int V>
  __device__ void finish(int64_t row, int64_t i, Accumulate<T> (&grad)[V]) const {
    const AddRowsBackwardArgs& add = this->add;
    Accumulate<T> own[V];
    load(static_cast<const T*>(add.grad_sum) + row * add.grad_sum_stride + i, own);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      grad[k] += own[k];
    }
  }

  bool has_vectors(int64_t lanes) const {
    return fusewheel::has_vectors(this->add.grad_sum, this->add.grad_sum_stride, lanes);
  }
};

}  // namespace
}  // namespace fusewheel
