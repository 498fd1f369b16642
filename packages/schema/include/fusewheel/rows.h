// Operators that work row by row along the last dimension.
#pragma once

#include <fusewheel/allocate.h>
#include <torch/csrc/stable/ops.h>

namespace fusewheel {

// A tensor as a matrix: rows of contiguous elements, a fixed stride apart.
struct Rows {
  Tensor tensor;
  int64_t count;
  int64_t size;
  int64_t stride;
};

// `tensor` itself where its layout allows, a contiguous copy otherwise.
inline Rows rows_of(const Tensor& tensor) {
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
  return {torch::stable::contiguous(tensor), count, size, size};
}

}  // namespace fusewheel
