// ATen's own products, called through the dispatcher: nothing of them is compiled in.
#pragma once

#include <fusewheel/allocate.h>
#include <torch/csrc/stable/ops.h>

#include <array>
#include <optional>

namespace fusewheel {

inline Tensor as_type(const Tensor& tensor, ScalarType dtype) {
  return tensor.scalar_type() == dtype ? tensor : torch::stable::to(tensor, dtype);
}

inline Tensor transposed(const Tensor& matrix) { return torch::stable::transpose(matrix, 0, 1); }

// A view of `size` rows (or columns) of a matrix.
inline Tensor part(const Tensor& matrix, int64_t dim, int64_t begin, int64_t size) {
  Tensor whole = matrix;  // another handle of the same tensor
  return torch::stable::narrow(whole, dim, begin, size);
}

// y = x * transposed weight + bias for matrices of one dtype
inline void aten_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                        const Tensor& y) {
  using torch::stable::detail::from;
  std::array<StableIValue, 4> stack{from(x), from(weight), from(bias), from(y)};
  STABLE_TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::linear", "out", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);  // takes the result, which is y, from the stack
}

// y = a * b for matrices of one dtype
inline void aten_product(const Tensor& a, const Tensor& b, const Tensor& y) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(a), from(b), from(y)};
  STABLE_TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::mm", "out", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace fusewheel
