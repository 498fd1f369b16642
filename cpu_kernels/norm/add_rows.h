// sum = x + residual, pair by pair, for the norms of a sum.
#pragma once

#include <fusewheel/norm/add_rows_args.h>

#include "simd/pairs.h"

namespace fusewheel::FUSEWHEEL_ISA {

// What to read in place of x: the sum, rounded as it is stored.
template <typename T>
FUSEWHEEL_INLINE auto sum_of_rows(const AddRowsArgs& args) {
  const auto* x = static_cast<const T*>(args.x);
  const auto* residual = static_cast<const T*>(args.residual);
  auto* sum = static_cast<T*>(args.sum);
  return [&args, x, residual, sum](int64_t row, int64_t i, int64_t live) FUSEWHEEL_STEP {
    const auto value = round_to<T>(load_pair(x + row * args.x_stride + i, live) +
                                   load_pair(residual + row * args.residual_stride + i, live));
    store_pair(sum + row * args.size + i, value, live);
    return value;
  };
}

// How to finish the gradient of the sum.
template <typename T>
FUSEWHEEL_INLINE auto plus_rows(const AddRowsBackwardArgs& args) {
  const auto* grad_sum = static_cast<const T*>(args.grad_sum);
  return [&args, grad_sum](int64_t row, int64_t i, int64_t live, auto grad) FUSEWHEEL_STEP {
    return grad + load_pair(grad_sum + row * args.grad_sum_stride + i, live);
  };
}

}  // namespace fusewheel::FUSEWHEEL_ISA
