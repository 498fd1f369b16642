// Arguments of rms_norm, checked the same way for every backend.
#pragma once

#include <fusewheel/norm/rms_norm_args.h>
#include <fusewheel/rows.h>

namespace fusewheel {

inline RmsNormCast check_rms_norm(const char* op, Argument x, Argument weight, int64_t cast) {
  check_rows(op, x);
  check_columns(op, weight, x);
  if (cast < 0 || cast > 2) {
    fail(op, "cast must be 0 (llama), 1 (gemma) or 2 (torch), got " + std::to_string(cast));
  }
  return static_cast<RmsNormCast>(cast);
}

// A checked call; owns the tensors its arguments point into.
struct RmsNorm {
  RmsNormCast cast;
  RowMatrix x;
  RowMatrix weight;
  Tensor y;
  Tensor rstd;
  RmsNormArgs args;

  RmsNorm(const char* op, Argument input, const Tensor& gain, double eps, int64_t mode)
      : cast(check_rms_norm(op, input, {"weight", gain}, mode)),
        x(rows_of(input.tensor)),
        weight(rows_of(gain)),
        y(empty_contiguous(input.tensor.sizes(), input.tensor.scalar_type(), input.tensor)),
        rstd(empty_contiguous(leading_sizes(input.tensor), accumulate_type(input.tensor),
                              input.tensor)),
        args{x.tensor.const_data_ptr(), weight.tensor.const_data_ptr(), y.mutable_data_ptr(),
             rstd.mutable_data_ptr(),   rstd.numel(),                   x.size,
             x.stride,                  eps,                            cast,
             dtype_of(input.tensor)} {}
};

struct RmsNormBackward {
  RmsNormCast cast;
  RowMatrix grad;
  RowMatrix x;
  RowMatrix weight;
  Tensor rstd;
  Tensor grad_x;
  Tensor partials;
  Tensor grad_weight;
  RmsNormBackwardArgs args;

  RmsNormBackward(const char* op, const Tensor& gradient, Argument input, const Tensor& gain,
                  const Tensor& scale, int64_t mode)
      : cast(check(op, gradient, input, gain, scale, mode)),
        grad(rows_of(gradient)),
        x(rows_of(input.tensor)),
        weight(rows_of(gain)),
        rstd(as_contiguous(scale)),
        grad_x(empty_contiguous(input.tensor.sizes(), input.tensor.scalar_type(), input.tensor)),
        partials(allocate_partials(x, input.tensor, row_chunks(x.count, x.size))),
        grad_weight(empty_contiguous(gain.sizes(), gain.scalar_type(), gain)),
        args{grad.tensor.const_data_ptr(),
             x.tensor.const_data_ptr(),
             weight.tensor.const_data_ptr(),
             rstd.const_data_ptr(),
             grad_x.mutable_data_ptr(),
             partials.mutable_data_ptr(),
             grad_weight.mutable_data_ptr(),
             x.count,
             x.size,
             grad.stride,
             x.stride,
             partials.sizes()[0],
             cast,
             dtype_of(input.tensor)} {}

 private:
  static RmsNormCast check(const char* op, const Tensor& grad, Argument x, const Tensor& weight,
                           const Tensor& rstd, int64_t mode) {
    const auto cast = check_rms_norm(op, x, {"weight", weight}, mode);
    check_same(op, {"grad", grad}, x);
    check_statistic(op, {"rstd", rstd}, x.tensor);
    return cast;
  }

  static Tensor allocate_partials(const RowMatrix& x, const Tensor& input, int64_t chunks) {
    const int64_t shape[] = {chunks, x.size};
    return empty_contiguous({shape, 2}, accumulate_type(input), input);
  }
};

}  // namespace fusewheel
