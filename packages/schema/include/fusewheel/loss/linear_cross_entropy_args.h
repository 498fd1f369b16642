// What the kernels of linear_cross_entropy are given: plain data, no torch.
#pragma once

#include <fusewheel/loss/cross_entropy_args.h>

namespace fusewheel {

// sum = from, or sum + from
struct AddToSumArgs {
  const void* from;
  void* sum;  // in the accumulation type
  int64_t count;
  Dtype dtype;  // of `from`
  bool first;
};

// Each kernel library has its own.
void add_to_sum_launch(const AddToSumArgs&, Stream);

}  // namespace fusewheel
