// The rows that a weight is multiplied with, as the products want them: widened, or rounded.
#pragma once

#include <fusewheel/linear/linear_args.h>

#include "isa.h"

namespace fusewheel {

// Rows of activations in steps of their blocks of kInt4Block elements.
struct RoundedRows {
  const int8_t* codes;  // [m, k]
  const float* steps;   // [m, blocks]
  const float* sums;    // likewise: of the rounded activations
  int64_t blocks;
};

// Rows of a matrix in any floating dtype, as those of the accumulation type.
struct WidenArgs {
  const void* from;
  Dtype dtype;
  int64_t stride;
  int64_t columns;
  bool transposed;  // `to` is [columns, rows] then
  int64_t rows;
  void* to;
  bool wide;  // float64
};

// Rows of float32 rounded to 255 steps per group: step = max |a| / 127.
struct RoundRowsArgs {
  const float* from;
  int64_t stride;
  int64_t columns;
  int64_t group_size;
  float* to;  // contiguous
};

// Likewise by blocks of kInt4Block, as integers.
struct CodeArgs {
  const float* from;
  int64_t stride;
  int64_t blocks;  // of a row
  int8_t* codes;
  float* steps;
  float* sums;
};

}  // namespace fusewheel

FUSEWHEEL_DECLARE(void widen_rows(const WidenArgs&, int64_t begin, int64_t end));
FUSEWHEEL_DECLARE(void round_rows(const RoundRowsArgs&, int64_t begin, int64_t end));
// Whether this level multiplies integers; where not, rounded activations stay floats.
FUSEWHEEL_DECLARE(bool has_integer_products());
FUSEWHEEL_DECLARE(void code_rows(const CodeArgs&, int64_t begin, int64_t end));
