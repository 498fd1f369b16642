// What the kernels of norms of a sum are given: plain data, no torch.
#pragma once

#include <fusewheel/geometry.h>

namespace fusewheel {

struct AddRowsArgs {
  const void* x;
  const void* residual;
  void* sum;  // contiguous
  int64_t size;
  int64_t x_stride;
  int64_t residual_stride;
};

// The gradient that comes from the sum itself, to be added to that of its norm.
struct AddRowsBackwardArgs {
  const void* grad_sum;
  int64_t grad_sum_stride;
};

}  // namespace fusewheel
