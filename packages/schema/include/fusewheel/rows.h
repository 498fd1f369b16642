// Operators that work row by row along the last dimension.
#pragma once

#include <fusewheel/allocate.h>
#include <fusewheel/backend.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>

namespace fusewheel {

// The dtype of what is computed for a whole row.
inline ScalarType accumulate_type(const Tensor& x) {
  return x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline IntHeaderOnlyArrayRef leading_sizes(const Tensor& x) {
  return {x.sizes().data(), static_cast<size_t>(x.dim() - 1)};
}

inline void check_rows(const char* op, Argument x) {
  check_floating(op, x);
  if (x.tensor.dim() == 0) {
    fail(op, std::string(x.name) + " must have at least one dimension, got a scalar tensor");
  }
}

// One value for every column of x.
inline void check_columns(const char* op, Argument weight, Argument x) {
  check_matches(op, weight, x);
  const int64_t size = x.tensor.sizes()[x.tensor.dim() - 1];
  check_sizes(op, weight, {&size, 1}, "the input's last dimension");
}

// Another tensor of x's shape.
inline void check_same(const char* op, Argument other, Argument x) {
  check_matches(op, other, x);
  check_sizes(op, other, x.tensor.sizes(), "the input's shape");
}

// What the forward pass computed for every row of x.
inline void check_statistic(const char* op, Argument statistic, const Tensor& x) {
  check_floating(op, statistic);
  const auto& tensor = statistic.tensor;
  check_sizes(op, statistic, leading_sizes(x), "the input's shape without its last dimension");
  if (tensor.scalar_type() != accumulate_type(x) || tensor.device() != x.device()) {
    fail(op, std::string(statistic.name) + " must be " + describe(accumulate_type(x)) + " on " +
                 describe_device(x) + ", got " + describe(tensor.scalar_type()) + " on " +
                 describe_device(tensor));
  }
}

// A tensor as a matrix: rows of contiguous elements, a fixed stride apart.
struct RowMatrix {
  Tensor tensor;
  int64_t count;
  int64_t size;
  int64_t stride;
};

// `tensor` itself where its layout allows, a contiguous copy otherwise.
inline RowMatrix rows_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t size = sizes[last];
  const int64_t count = size == 0 ? 0 : tensor.numel() / size;
  bool uniform = size <= 1 || strides[last] == 1;
  int64_t stride = size;
  int64_t expected = -1;  // the stride that would continue the rows so far
  for (int64_t i = last; i-- > 0;) {
    if (sizes[i] == 1) {
      continue;
    }
    if (expected < 0) {
      stride = strides[i];
    } else if (strides[i] != expected) {
      uniform = false;
    }
    expected = strides[i] * sizes[i];
  }
  if (uniform || tensor.numel() == 0) {
    return {tensor, count, size, stride};
  }
  return {as_contiguous(tensor), count, size, size};
}

}  // namespace fusewheel
