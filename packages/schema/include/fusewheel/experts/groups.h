// Rows sorted by group, and a weight for each group: what the kernels of every device are given.
// No torch.
#pragma once

#include <fusewheel/linear/linear_args.h>

namespace fusewheel {

// Where the groups end: a group has the rows from the end of the one before. Rows after the last
// end belong to none.
struct GroupEnds {
  const void* data;  // null where all rows are of one group
  int64_t stride;
  bool is_long;   // int64_t, else int32_t
  int64_t count;  // of groups
  int64_t rows;   // of all groups and of none
};

// A weight for each group.
struct GroupWeights {
  LinearWeight first;  // of group 0
  bool transposed;     // stored as [in features, out features]
  int64_t step;        // from a group's weight to the next, in bytes
};

// y = x * transposed weight of the row's group + its bias, or x * weight.
struct GroupedProductArgs {
  GroupEnds ends;
  GroupWeights weights;
  bool backward;  // x * weight
  const void* x;
  int64_t x_stride;
  Dtype dtype;       // of x and y
  const void* bias;  // [groups, out features], contiguous, or null
  Dtype bias_dtype;
  void* y;  // contiguous
};

// For each group: to [columns of grad, columns of x] = transposed grad * x, over its rows.
struct GroupedGradientArgs {
  GroupEnds ends;
  const void* grad;
  int64_t grad_stride;
  int64_t grad_columns;
  const void* x;
  int64_t x_stride;
  int64_t x_columns;
  Dtype dtype;  // of both
  void* to;     // contiguous
  Dtype to_dtype;
};

}  // namespace fusewheel
