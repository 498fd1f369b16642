// Rows of x for kernels that read 128 bits at a time without looking where a row begins or ends.
#pragma once

#include <fusewheel/aten.h>
#include <fusewheel/rows.h>

namespace fusewheel {

// x itself where its rows begin at multiples of 128 bits and have whole runs of `run` elements, as they nearly always
// do; else a copy of which that is true, with zeros behind its rows. A run fills whole vectors.
inline RowMatrix by_vectors(const RowMatrix& x, int64_t run) {
  constexpr int64_t kVector = 16;  // bytes
  const int64_t size = (x.size + run - 1) / run * run;
  const int64_t step = x.count > 1 ? x.stride * x.tensor.element_size() : 0;
  const auto address = reinterpret_cast<uintptr_t>(x.tensor.const_data_ptr());
  if (size == x.size && address % kVector == 0 && step % kVector == 0) {
    return x;
  }
  const int64_t padded[] = {x.count, size};
  const int64_t own[] = {x.count, x.size};
  Tensor copy = empty_contiguous({padded, 2}, x.tensor.scalar_type(), x.tensor);
  torch::stable::zero_(copy);
  Tensor to = part(copy, 1, 0, x.size);
  torch::stable::copy_(to, torch::stable::reshape(x.tensor, {own, 2}));
  return {copy, x.count, x.size, size};
}

}  // namespace fusewheel
