// sum = x + residual, for norms of a sum: arguments, checked the same way for every backend.
#pragma once

#include <fusewheel/norm/add_rows_args.h>
#include <fusewheel/rows.h>

namespace fusewheel {

// A checked call; owns the tensors its arguments point into.
struct AddRows {
  RowMatrix x;
  RowMatrix residual;
  Tensor sum;
  AddRowsArgs args;

  AddRows(const char* op, Argument input, Argument other)
      : x(checked(op, input, input)),
        residual(checked(op, other, input)),
        sum(empty_contiguous(input.tensor.sizes(), input.tensor.scalar_type(), input.tensor)),
        args{x.tensor.const_data_ptr(),
             residual.tensor.const_data_ptr(),
             sum.mutable_data_ptr(),
             x.size,
             x.stride,
             residual.stride} {}

 private:
  static RowMatrix checked(const char* op, Argument addend, Argument x) {
    check_rows(op, x);
    check_same(op, addend, x);
    return rows_of(addend.tensor);
  }
};

struct AddRowsBackward {
  RowMatrix grad_sum;
  AddRowsBackwardArgs args;

  AddRowsBackward(const char* op, Argument grad, Argument sum)
      : grad_sum(checked(op, grad, sum)), args{grad_sum.tensor.const_data_ptr(), grad_sum.stride} {}

 private:
  static RowMatrix checked(const char* op, Argument grad, Argument sum) {
    check_same(op, grad, sum);
    return rows_of(grad.tensor);
  }
};

}  // namespace fusewheel
