// What the sum over the rows of a matrix is given.
#pragma once

#include <fusewheel/geometry.h>

namespace fusewheel {

// sum = the sum of the rows of `from`, or is increased by it
struct SumRowsArgs {
  const void* from;
  void* sum;  // [columns] in the accumulation type
  int64_t rows;
  int64_t columns;
  Dtype dtype;  // of `from`
  bool first;
};

void sum_rows_launch(const SumRowsArgs&, Stream);

}  // namespace fusewheel
