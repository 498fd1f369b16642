// Activations as matmul.h's products want them: copies that are widened or rounded.
#pragma once

#include <fusewheel/linear/linear.h>

#include "activations.h"

namespace fusewheel {

// Rows in the accumulation type: themselves where they are, a copy otherwise, whose rows are apart, see
// `spread`.
RowMatrix widen(const RowMatrix& rows, bool wide, bool transposed = false);

// The columns of such rows as rows of the accumulation type, in tiles, into `memory` if given.
RowMatrix columns_in_tiles(const RowMatrix& rows, bool wide, const std::optional<Tensor>& memory);

// Memory for so many columns of so many rows in tiles.
Tensor memory_for_tiles(int64_t columns, int64_t rows, bool wide, const Tensor& like);

// Rows of the accumulation type for a product of so many columns: themselves, or a copy whose rows lie
// in different sets of the first-level cache, where that pays.
RowMatrix spread(const RowMatrix& rows, int64_t columns);

// Whether rows and this weight are multiplied as bfloat16. The weight is rounded to it if it is stored in
// blocks.
bool multiplies_bfloat16(const RowMatrix& rows, const LinearWeight& weight);

// Rows of bfloat16 for such products: themselves, or a copy. They are multiples of 32 numbers long, the
// last ones zeros, and behind `count` of them memory for up to 15 more can be read.
RowMatrix whole_rows(const RowMatrix& rows, int64_t count);

// Rows of float32 rounded to int8 by groups, still as float32.
RowMatrix round_to_int8(const RowMatrix& rows, int64_t group_size);

// Rows rounded to whole numbers for a weight of 4-bit or 8-bit codes, and the memory that holds them.
class RoundedMatrix {
 public:
  RoundedMatrix(const RowMatrix& from, const LinearWeight& weight);

  const RoundedRows& rows() const { return rows_; }

 private:
  Tensor codes_;
  Tensor steps_;
  Tensor sums_;  // or offsets
  RoundedRows rows_;
};

}  // namespace fusewheel
