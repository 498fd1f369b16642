// Arguments of rms_norm, checked the same way for every backend.
#pragma once

#include <fusewheel/geometry.h>

namespace fusewheel {

// How weight and rounding meet; the numbers are those of the schema's `cast`.
enum class RmsNormCast : int64_t { kLlama, kGemma, kTorch };

struct RmsNormArgs {
  const void* x;
  const void* weight;
  void* y;
  void* rstd;
  int64_t count;
  int64_t size;
  int64_t x_stride;
  double eps;
  RmsNormCast cast;
  Dtype dtype;
};

struct RmsNormBackwardArgs {
  const void* grad;
  const void* x;
  const void* weight;
  const void* rstd;
  void* grad_x;
  void* partials;  // [chunks, size]: the weight gradient of each chunk of rows
  void* grad_weight;
  int64_t count;
  int64_t size;
  int64_t grad_stride;
  int64_t x_stride;
  int64_t chunks;
  RmsNormCast cast;
  Dtype dtype;
};

}  // namespace fusewheel

#if FUSEWHEEL_GLUE

#include <fusewheel/rows.h>

#include <algorithm>

namespace fusewheel {

inline ScalarType rstd_type(const Tensor& x) {
  return x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline IntHeaderOnlyArrayRef leading_sizes(const Tensor& x) {
  return {x.sizes().data(), static_cast<size_t>(x.dim() - 1)};
}

inline RmsNormCast check_rms_norm(const char* op, Argument x, Argument weight, int64_t cast) {
  check_floating(op, x);
  check_matches(op, weight, x);
  if (x.tensor.dim() == 0) {
    fail(op, "x must have at least one dimension, got a scalar tensor");
  }
  const int64_t size = x.tensor.sizes()[x.tensor.dim() - 1];
  check_sizes(op, weight, {&size, 1}, "the last dimension of x");
  if (cast < 0 || cast > 2) {
    fail(op, "cast must be 0 (llama), 1 (gemma) or 2 (torch), got " + std::to_string(cast));
  }
  return static_cast<RmsNormCast>(cast);
}

// A checked call; owns the tensors its arguments point into.
struct RmsNorm {
  RmsNormCast cast;
  Rows x;
  Rows weight;
  Tensor y;
  Tensor rstd;
  RmsNormArgs args;

  RmsNorm(const Tensor& input, const Tensor& gain, double eps, int64_t mode)
      : cast(check_rms_norm("rms_norm", {"x", input}, {"weight", gain}, mode)),
        x(rows_of(input)),
        weight(rows_of(gain)),
        y(empty_contiguous(input.sizes(), input.scalar_type(), input)),
        rstd(empty_contiguous(leading_sizes(input), rstd_type(input), input)),
        args{x.tensor.const_data_ptr(), weight.tensor.const_data_ptr(), y.mutable_data_ptr(),
             rstd.mutable_data_ptr(),   rstd.numel(),                   x.size,
             x.stride,                  eps,                            cast,
             dtype_of(input)} {}
};

// Into how many chunks of rows the weight gradient is split. It may depend on the shape alone: the
// same bits for any number of threads.
inline int64_t rms_norm_chunks(int64_t count, int64_t) {
  return std::min<int64_t>(64, count / 16 + 1);
}

struct RmsNormBackward {
  RmsNormCast cast;
  Rows grad;
  Rows x;
  Rows weight;
  Tensor rstd;
  Tensor grad_x;
  Tensor partials;
  Tensor grad_weight;
  RmsNormBackwardArgs args;

  RmsNormBackward(const Tensor& gradient, const Tensor& input, const Tensor& gain,
                  const Tensor& scale, int64_t mode,
                  int64_t (*chunks_of)(int64_t count, int64_t size) = rms_norm_chunks)
      : cast(check(gradient, input, gain, scale, mode)),
        grad(rows_of(gradient)),
        x(rows_of(input)),
        weight(rows_of(gain)),
        rstd(torch::stable::contiguous(scale)),
        grad_x(empty_contiguous(input.sizes(), input.scalar_type(), input)),
        partials(allocate_partials(x, input, chunks_of(x.count, x.size))),
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
             dtype_of(input)} {}

 private:
  static RmsNormCast check(const Tensor& grad, const Tensor& x, const Tensor& weight,
                           const Tensor& rstd, int64_t mode) {
    constexpr const char* op = "rms_norm_backward";
    const auto cast = check_rms_norm(op, {"x", x}, {"weight", weight}, mode);
    check_matches(op, {"grad", grad}, {"x", x});
    check_sizes(op, {"grad", grad}, x.sizes(), "the shape of x");
    check_floating(op, {"rstd", rstd});
    check_sizes(op, {"rstd", rstd}, leading_sizes(x), "the shape of x without its last dimension");
    if (rstd.scalar_type() != rstd_type(x) || rstd.device() != x.device()) {
      fail(op, std::string("rstd must be ") + describe(rstd_type(x)) + " on " +
                   describe_device(x) + ", got " + describe(rstd.scalar_type()) + " on " +
                   describe_device(rstd));
    }
    return cast;
  }

  static Tensor allocate_partials(const Rows& x, const Tensor& input, int64_t chunks) {
    const int64_t shape[] = {chunks, x.size};
    return empty_contiguous({shape, 2}, rstd_type(input), input);
  }
};

}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
