// Outputs, allocated through the C interface: a helper that goes through the dispatcher costs about
// a microsecond, as much as a small operator itself.
#pragma once

#include <fusewheel/check.h>
#include <torch/csrc/stable/ops.h>

namespace fusewheel {

inline Tensor empty_strided(IntHeaderOnlyArrayRef sizes, IntHeaderOnlyArrayRef strides,
                            ScalarType dtype, const Tensor& like) {
  int32_t device_type = 0;
  int32_t device_index = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
  const auto code =
      torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
                               code, device_type, device_index, &handle));
  return Tensor(handle);
}

inline Tensor empty_contiguous(IntHeaderOnlyArrayRef sizes, ScalarType dtype, const Tensor& like) {
  int64_t strides[kMaxDims];
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i] > 1 ? sizes[i] : 1;
  }
  return empty_strided(sizes, IntHeaderOnlyArrayRef(strides, sizes.size()), dtype, like);
}

// The tensor itself where it is contiguous already.
inline Tensor as_contiguous(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

}  // namespace fusewheel
