// Activations as matmul.h's products want them: copies that are widened or rounded.
#pragma once

#include <fusewheel/linear/linear.h>

#include "activations.h"

namespace fusewheel {

// Rows in the accumulation type: themselves where they are, a copy otherwise, into `memory` if
// given. The copy's rows are apart, see `spread`, but in `memory`.
RowMatrix widen(const RowMatrix& rows, bool wide, bool transposed = false,
           const std::optional<Tensor>& memory = std::nullopt);

// Rows of the accumulation type for a product of so many columns: themselves, or a copy whose rows lie
// in different sets of the first-level cache, where that pays.
RowMatrix spread(const RowMatrix& rows, int64_t columns);

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
