// Arguments of cross_entropy, checked the same way for every backend.
#pragma once

#include <fusewheel/loss/cross_entropy_args.h>
#include <fusewheel/rows.h>

#include <optional>

namespace fusewheel {

// A class for every row of a matrix.
inline void check_classes(const char* op, const Tensor& target, Argument matrix) {
  if (!target.defined()) {
    fail(op, "target must be a tensor, got None");
  }
  if (target.scalar_type() != ScalarType::Long) {
    fail(op, std::string("target must be int64, got ") + describe(target.scalar_type()));
  }
  const std::string name = matrix.name;
  if (target.device() != matrix.tensor.device()) {
    fail(op, "target must be on the device of " + name + ", " + describe_device(matrix.tensor) +
                 ", got " + describe_device(target));
  }
  check_sizes(op, {"target", target}, leading_sizes(matrix.tensor), ("the rows of " + name).c_str());
}

inline void check_cross_entropy(const char* op, double label_smoothing, double softcap) {
  if (!(label_smoothing >= 0 && label_smoothing <= 1)) {
    fail(op, "label_smoothing must be between 0 and 1, got " + std::to_string(label_smoothing));
  }
  if (!(softcap >= 0)) {
    fail(op, "softcap must be positive, or 0 for none, got " + std::to_string(softcap));
  }
}

// What the targets are, if they can be read. Elsewhere a row whose target is no class becomes NaN.
inline void check_targets(const char* op, const Tensor& target, int64_t classes,
                          int64_t ignore_index) {
  if (!can_read_tensors()) {
    return;
  }
  const auto* values = static_cast<const int64_t*>(target.const_data_ptr());
  for (int64_t n = 0; n < target.numel(); ++n) {
    if ((values[n] < 0 || values[n] >= classes) && values[n] != ignore_index) {
      fail(op, "target must be between 0 and " + std::to_string(classes - 1) + " (there are " +
                   std::to_string(classes) + " classes) or ignore_index, " +
                   std::to_string(ignore_index) + ", got " + std::to_string(values[n]) +
                   " in row " + std::to_string(n));
    }
  }
}

// A checked call but for what the targets are; owns the tensors its arguments point into.
struct CrossEntropy {
  RowMatrix logits;
  Tensor target;
  std::optional<Tensor> weight;
  std::optional<Tensor> row_grad;
  Tensor loss;
  Tensor logsumexp;
  Tensor grad;
  CrossEntropyArgs args;

  CrossEntropy(const Tensor& input, const Tensor& classes, const std::optional<Tensor>& gains,
               int64_t ignore_index, double label_smoothing, double z_loss, double softcap,
               bool needs_grad, const std::optional<Tensor>& outer)
      : logits(check(input, classes, gains, label_smoothing, softcap)),
        target(as_contiguous(classes)),
        loss(empty_contiguous(classes.sizes(), accumulate_type(input), input)),
        logsumexp(empty_contiguous(classes.sizes(), accumulate_type(input), input)),
        grad(allocate_grad(input, needs_grad)) {
    if (gains.has_value()) {
      weight = as_contiguous(*gains);
    }
    if (outer.has_value()) {
      check_statistic(kOp, {"grad", *outer}, input);
      row_grad = as_contiguous(*outer);
    }
    args = {logits.tensor.const_data_ptr(),
            static_cast<const int64_t*>(target.const_data_ptr()),
            weight.has_value() ? weight->const_data_ptr() : nullptr,
            loss.mutable_data_ptr(),
            logsumexp.mutable_data_ptr(),
            needs_grad ? grad.mutable_data_ptr() : nullptr,
            row_grad.has_value() ? row_grad->const_data_ptr() : nullptr,
            logits.count,
            logits.size,
            logits.stride,
            ignore_index,
            1 - label_smoothing,
            label_smoothing / static_cast<double>(logits.size),
            z_loss,
            softcap,
            dtype_of(input)};
  }

 private:
  static constexpr const char* kOp = "cross_entropy";

  static RowMatrix check(const Tensor& logits, const Tensor& target,
                    const std::optional<Tensor>& weight, double label_smoothing, double softcap) {
    check_floating(kOp, {"logits", logits});
    if (logits.dim() != 2 || logits.sizes()[1] == 0) {
      fail(kOp, "logits must have shape [rows, classes] with at least one class, got " +
                    describe(logits.sizes()));
    }
    check_classes(kOp, target, {"logits", logits});
    if (weight.has_value()) {
      check_columns(kOp, {"weight", *weight}, {"logits", logits});
    }
    check_cross_entropy(kOp, label_smoothing, softcap);
    return rows_of(logits);
  }

  static Tensor allocate_grad(const Tensor& logits, bool needs_grad) {
    const int64_t nothing[] = {0};
    return empty_contiguous(needs_grad ? logits.sizes() : IntHeaderOnlyArrayRef(nothing, 1),
                            logits.scalar_type(), logits);
  }
};

struct CrossEntropyBackward {
  Tensor row_grad;
  RowMatrix unit_grad;
  Tensor grad;
  CrossEntropyBackwardArgs args;

  CrossEntropyBackward(const Tensor& outer, const Tensor& inner)
      : row_grad(check(outer, inner)),
        unit_grad(rows_of(inner)),
        grad(empty_contiguous(inner.sizes(), inner.scalar_type(), inner)),
        args{row_grad.const_data_ptr(), unit_grad.tensor.const_data_ptr(), grad.mutable_data_ptr(),
             unit_grad.count,           unit_grad.size,                    unit_grad.stride,
             dtype_of(inner)} {}

 private:
  static Tensor check(const Tensor& row_grad, const Tensor& unit_grad) {
    constexpr const char* op = "cross_entropy_backward";
    check_floating(op, {"grad_logits", unit_grad});
    if (unit_grad.dim() != 2) {
      fail(op, "grad_logits must have shape [rows, classes], got " + describe(unit_grad.sizes()));
    }
    check_statistic(op, {"grad", row_grad}, unit_grad);
    return as_contiguous(row_grad);
  }
};

}  // namespace fusewheel
