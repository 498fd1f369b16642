// Torch's numbers for dtypes, as those of the kernels.
#pragma once

#include <fusewheel/geometry.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace fusewheel::engine {

// The dtypes of models: float32, bfloat16 and float16. False for all others; else sets `found`.
inline bool find_dtype(int32_t number, Dtype& found) {
  if (number == aoti_torch_dtype_float32()) {
    found = Dtype::kFloat32;
  } else if (number == aoti_torch_dtype_bfloat16()) {
    found = Dtype::kBFloat16;
  } else if (number == aoti_torch_dtype_float16()) {
    found = Dtype::kFloat16;
  } else {
    return false;
  }
  return true;
}

inline int64_t item_size(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

}  // namespace fusewheel::engine
