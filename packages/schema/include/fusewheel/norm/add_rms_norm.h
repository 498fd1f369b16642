// Arguments of add_rms_norm, checked the same way for every backend.
#pragma once

#include <fusewheel/norm/add_rms_norm_args.h>
#include <fusewheel/norm/add_rows.h>
#include <fusewheel/norm/rms_norm.h>

namespace fusewheel {

// A checked call; owns the tensors its arguments point into.
struct AddRmsNorm {
  AddRows add;
  RmsNorm norm;
  AddRmsNormArgs args;

  AddRmsNorm(const char* op, const Tensor& x, const Tensor& residual, const Tensor& weight,
             double eps, int64_t cast)
      : add(op, {"x", x}, {"residual", residual}),
        norm(op, {"x", add.sum}, weight, eps, cast),
        args{add.args, norm.args} {}
};

struct AddRmsNormBackward {
  RmsNormBackward norm;
  AddRowsBackward add;
  AddRmsNormBackwardArgs args;

  AddRmsNormBackward(const char* op, const Tensor& grad, const Tensor& grad_sum, const Tensor& sum,
                     const Tensor& weight, const Tensor& rstd, int64_t cast)
      : norm(op, grad, {"sum", sum}, weight, rstd, cast),
        add(op, {"grad_sum", grad_sum}, {"sum", sum}),
        args{add.args, norm.args} {}
};

}  // namespace fusewheel
