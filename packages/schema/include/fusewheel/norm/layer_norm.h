// Arguments of layer_norm, checked the same way for every backend.
#pragma once

#include <fusewheel/norm/layer_norm_args.h>
#include <fusewheel/rows.h>

#include <optional>

namespace fusewheel {

using OptionalTensor = std::optional<Tensor>;

// A weight or a bias: contiguous, or absent.
struct Columns {
  OptionalTensor tensor;

  Columns(const char* op, const char* name, const OptionalTensor& given, Argument x) {
    if (given.has_value()) {
      check_columns(op, {name, *given}, x);
      tensor = rows_of(*given).tensor;
    }
  }

  const void* data() const { return tensor.has_value() ? tensor->const_data_ptr() : nullptr; }
};

// A checked call; owns the tensors its arguments point into.
struct LayerNorm {
  RowMatrix x;
  Columns weight;
  Columns bias;
  Tensor y;
  Tensor mean;
  Tensor rstd;
  LayerNormArgs args;

  LayerNorm(const char* op, Argument input, const OptionalTensor& gain, const OptionalTensor& shift,
            double eps)
      : x(checked(op, input)),
        weight(op, "weight", gain, input),
        bias(op, "bias", shift, input),
        y(empty_contiguous(input.tensor.sizes(), input.tensor.scalar_type(), input.tensor)),
        mean(empty_statistic(input.tensor)),
        rstd(empty_statistic(input.tensor)),
        args{x.tensor.const_data_ptr(),
             weight.data(),
             bias.data(),
             y.mutable_data_ptr(),
             mean.mutable_data_ptr(),
             rstd.mutable_data_ptr(),
             rstd.numel(),
             x.size,
             x.stride,
             eps,
             dtype_of(input.tensor)} {}

 private:
  static RowMatrix checked(const char* op, Argument x) {
    check_rows(op, x);
    return rows_of(x.tensor);
  }

  static Tensor empty_statistic(const Tensor& x) {
    return empty_contiguous(leading_sizes(x), accumulate_type(x), x);
  }
};

struct LayerNormBackward {
  RowMatrix grad;
  RowMatrix x;
  Columns weight;
  Tensor mean;
  Tensor rstd;
  Tensor grad_x;
  Tensor partials;
  Tensor grad_weight;
  Tensor grad_bias;
  LayerNormBackwardArgs args;

  // Without `parameters`, the gradients of weight and bias are left out and come back empty.
  LayerNormBackward(const char* op, const Tensor& gradient, Argument input,
                    const OptionalTensor& gain, const Tensor& means, const Tensor& scale,
                    bool parameters)
      : grad(checked(op, gradient, input, means, scale)),
        x(rows_of(input.tensor)),
        weight(op, "weight", gain, input),
        mean(as_contiguous(means)),
        rstd(as_contiguous(scale)),
        grad_x(empty_contiguous(input.tensor.sizes(), input.tensor.scalar_type(), input.tensor)) {
    const auto& like = input.tensor;
    const int64_t chunks = row_chunks(x.count, x.size);
    const int64_t shape[] = {parameters ? 2 * chunks : 0, x.size};
    const int64_t columns = parameters ? x.size : 0;
    partials = empty_contiguous({shape, 2}, accumulate_type(like), like);
    grad_weight = empty_contiguous({&columns, 1}, like.scalar_type(), like);
    grad_bias = empty_contiguous({&columns, 1}, like.scalar_type(), like);
    auto* first = static_cast<char*>(partials.mutable_data_ptr());
    auto* second = first + chunks * x.size * static_cast<int64_t>(partials.element_size());
    args = {grad.tensor.const_data_ptr(),
            x.tensor.const_data_ptr(),
            weight.data(),
            mean.const_data_ptr(),
            rstd.const_data_ptr(),
            grad_x.mutable_data_ptr(),
            parameters ? first : nullptr,
            parameters ? second : nullptr,
            grad_weight.mutable_data_ptr(),
            grad_bias.mutable_data_ptr(),
            x.count,
            x.size,
            grad.stride,
            x.stride,
            chunks,
            dtype_of(like)};
  }

 private:
  static RowMatrix checked(const char* op, const Tensor& grad, Argument x, const Tensor& mean,
                      const Tensor& rstd) {
    check_rows(op, x);
    check_same(op, {"grad", grad}, x);
    check_statistic(op, {"mean", mean}, x.tensor);
    check_statistic(op, {"rstd", rstd}, x.tensor);
    return rows_of(grad);
  }
};

}  // namespace fusewheel
