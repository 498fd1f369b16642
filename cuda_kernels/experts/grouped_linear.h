// The functions that launch grouped products.
#pragma once

#include <fusewheel/experts/groups.h>

#include "linear/args.h"

namespace fusewheel {

// A linear layer is a group of all rows.
inline GroupedProductArgs one_group(const LinearArgs& args, bool backward) {
  const GroupEnds ends = {nullptr, 0, true, 1, args.rows};
  return {ends,         {args.weight, false, 0}, backward,        args.x, args.x_stride,
          args.y_dtype, args.bias,               args.bias_dtype, args.y};
}

// With at most so many rows a group, on average, reading the weight is most of the work.
constexpr int64_t kFewRowsOfGroup = 4;

// A part of the weights in blocks as numbers, of each group from `first` to `last`, dense: forward
// [columns, inner], backward [inner, columns]. They are float32; or, for tensor cores, each is the sum of
// kWeightParts in bfloat16, which lie in as many matrices.
struct DecodedGroups {
  int64_t first;
  int64_t last;
  int64_t column;   // of y, where the part begins
  int64_t columns;  // of y
  int64_t inner;
  const void* numbers;
  int64_t step;  // from one of these matrices to the next, in bytes; 0 for float32
};

void grouped_linear_launch(const GroupedProductArgs&, Stream);
// x in the dtype of sums: float64 where y is, else float32.
// Forward, for few rows by_vectors.
void grouped_linear_blocks_launch(const GroupedProductArgs&, Stream);
void grouped_decoded_launch(const char* op, const GroupedProductArgs&, const DecodedGroups&, Stream);
// Whether decoded weights may be sums: x and y are in one half type then.
bool grouped_decoded_takes_sums(const char* op, const GroupedProductArgs&);
void grouped_linear_backward_weight_launch(const GroupedGradientArgs&, Stream);

}  // namespace fusewheel
