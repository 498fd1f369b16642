// The sum x + residual, vector by vector, that a norm may have before it. One kernel serves the norm
// and the norm of a sum: for the norm alone there is no sum, and its pointers are null.
#pragma once

#include <fusewheel/norm/add_rows_args.h>

#include "common/rows.h"

namespace fusewheel {
namespace {

// A vector of the sum as it is stored, which is written; of `x` where there is no sum. Each thread reads
// back the elements that it wrote itself.
template <typename T, int V>
__device__ void read_sum(const AddRowsArgs& add, const T* x, int64_t row, int64_t i,
                         Accumulate<T> (&values)[V]) {
  if (add.sum == nullptr) {
    load(x + i, values);
    return;
  }
  Accumulate<T> addends[V];
  load(static_cast<const T*>(add.x) + row * add.x_stride + i, values);
  load(static_cast<const T*>(add.residual) + row * add.residual_stride + i, addends);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    values[k] = round_to<T>(values[k] + addends[k]);
  }
  store(static_cast<T*>(add.sum) + row * add.size + i, values);
}

// Adds the gradient that comes from the sum itself, if there is one.
template <typename T, int V>
__device__ void add_grad_sum(const AddRowsBackwardArgs& add, int64_t row, int64_t i,
                             Accumulate<T> (&grad)[V]) {
  if (add.grad_sum == nullptr) {
    return;
  }
  Accumulate<T> own[V];
  load(static_cast<const T*>(add.grad_sum) + row * add.grad_sum_stride + i, own);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    grad[k] += own[k];
  }
}

inline bool has_vectors(const AddRowsArgs& add, int64_t lanes) {
  return add.sum == nullptr || (has_vectors(add.x, add.x_stride, lanes) &&
                                has_vectors(add.residual, add.residual_stride, lanes));
}

inline bool has_vectors(const AddRowsBackwardArgs& add, int64_t lanes) {
  return add.grad_sum == nullptr || has_vectors(add.grad_sum, add.grad_sum_stride, lanes);
}

}  // namespace
}  // namespace fusewheel
