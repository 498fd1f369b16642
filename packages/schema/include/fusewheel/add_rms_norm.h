// Arguments of add_rms_norm, checked the same way for every backend.
#pragma once

#include <fusewheel/rms_norm.h>

namespace fusewheel {

struct AddRmsNormArgs {
  RmsNormArgs norm;  // of the sum
  const void* x;
  const void* residual;
  void* sum;
  int64_t x_stride;
  int64_t residual_stride;
};

struct AddRmsNormBackwardArgs {
  RmsNormBackwardArgs norm;  // of the sum
  const void* grad_sum;
  int64_t grad_sum_stride;
};

}  // namespace fusewheel

#if FUSEWHEEL_GLUE

namespace fusewheel {

// A checked call; owns the tensors its arguments point into.
struct AddRmsNorm {
  Tensor sum;
  Rows x;
  Rows residual;
  RmsNorm norm;
  AddRmsNormArgs args;

  AddRmsNorm(const Tensor& input, const Tensor& other, const Tensor& gain, double eps, int64_t cast)
      : sum(allocate({"x", input}, {"residual", other}, {"weight", gain}, cast)),
        x(rows_of(input)),
        residual(rows_of(other)),
        norm(kName, {"x", sum}, gain, eps, cast),
        args{norm.args,
             x.tensor.const_data_ptr(),
             residual.tensor.const_data_ptr(),
             sum.mutable_data_ptr(),
             x.stride,
             residual.stride} {}

 private:
  static constexpr const char* kName = "add_rms_norm";

  static Tensor allocate(Argument x, Argument residual, Argument weight, int64_t cast) {
    check_rms_norm(kName, x, weight, cast);
    check_same(kName, residual, x);
    return empty_contiguous(x.tensor.sizes(), x.tensor.scalar_type(), x.tensor);
  }
};

struct AddRmsNormBackward {
  RmsNormBackward norm;
  Rows grad_sum;
  AddRmsNormBackwardArgs args;

  AddRmsNormBackward(const Tensor& grad, const Tensor& grad_of_sum, const Tensor& sum,
                     const Tensor& weight, const Tensor& rstd, int64_t cast,
                     int64_t (*chunks_of)(int64_t count, int64_t size) = row_chunks)
      : norm(kName, grad, {"sum", sum}, weight, rstd, cast, chunks_of),
        grad_sum(checked({"grad_sum", grad_of_sum}, {"sum", sum})),
        args{norm.args, grad_sum.tensor.const_data_ptr(), grad_sum.stride} {}

 private:
  static constexpr const char* kName = "add_rms_norm_backward";

  static Rows checked(Argument grad_sum, Argument sum) {
    check_same(kName, grad_sum, sum);
    return rows_of(grad_sum.tensor);
  }
};

}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
