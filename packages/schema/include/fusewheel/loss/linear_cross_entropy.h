// Arguments of linear_cross_entropy, checked the same way for every backend, and its loop: a chunk
// of rows at a time, the logits, their loss, its gradient in the place of the logits, and what that
// gives to the gradients. No more logits than a chunk's ever exist.
#pragma once

#include <fusewheel/aten.h>
#include <fusewheel/loss/cross_entropy.h>
#include <fusewheel/loss/linear_cross_entropy_args.h>
#include <fusewheel/rows.h>

#include <array>

namespace fusewheel {

struct CrossEntropyOptions {
  int64_t ignore_index;
  double label_smoothing;
  double z_loss;
  double softcap;
};

struct Wanted {
  bool x;
  bool weight;
  bool bias;
};

// A checked call. The gradients are those of the sum of all rows' losses, or of what `row_grad` makes
// of them. Those of the parameters stay in the type they are summed in: the caller scales them, and
// float16 would neither hold a sum over many rows nor a small share of it.
struct LinearCrossEntropy {
  Tensor x;       // [rows, features]
  Tensor weight;  // [classes, features]
  std::optional<Tensor> bias;
  std::optional<Tensor> class_weight;
  Tensor target;
  std::optional<Tensor> row_grad;
  CrossEntropyOptions options;
  Wanted wanted;
  int64_t rows;
  int64_t classes;
  Tensor loss;
  Tensor logsumexp;
  Tensor grad_x;
  Tensor grad_weight;
  Tensor grad_bias;

  LinearCrossEntropy(const char* op, const Tensor& input, const Tensor& matrix,
                     const Tensor& row_target, const std::optional<Tensor>& offset,
                     const std::optional<Tensor>& gains, const CrossEntropyOptions& chosen,
                     const Wanted& gradients, const std::optional<Tensor>& outer = std::nullopt)
      : options(chosen), wanted(gradients) {
    const Argument argument{"x", input};
    check_matrix(op, argument, "[rows, in features]");
    check_matches(op, {"weight", matrix}, argument);
    check_matrix(op, {"weight", matrix}, "[classes, in features]");
    rows = input.sizes()[0];
    classes = matrix.sizes()[0];
    const int64_t expected[] = {classes, input.sizes()[1]};
    check_sizes(op, {"weight", matrix}, {expected, 2}, "classes, the input's last dimension");
    if (classes == 0) {
      fail(op, "weight must have at least one class, got shape " + describe(matrix.sizes()));
    }
    check_classes(op, row_target, argument);
    bias = per_class(op, "bias", offset, argument);
    class_weight = per_class(op, "class_weight", gains, argument);
    check_cross_entropy(op, options.label_smoothing, options.softcap);
    if (outer.has_value()) {
      check_statistic(op, {"grad", *outer}, input);
      row_grad = as_contiguous(*outer);
    }
    x = input;
    // Products read rows or columns as they lie; of anything else they would copy every chunk.
    const bool dense = matrix.strides()[0] == 1 || matrix.strides()[1] == 1;
    weight = dense ? matrix : as_contiguous(matrix);
    target = as_contiguous(row_target);
    const ScalarType wide = accumulate_type(input);
    loss = empty_contiguous(row_target.sizes(), wide, input);
    logsumexp = empty_contiguous(row_target.sizes(), wide, input);
    grad_x = gradient(wanted.x, input.sizes(), input.scalar_type());
    grad_weight = gradient(wanted.weight, matrix.sizes(), wide);
    grad_bias = gradient(wanted.bias, {&classes, 1}, wide);
  }

  bool wants_any() const { return wanted.x || wanted.weight || wanted.bias; }

  // For the rows from `begin` on, whose logits these are; their gradient is written over them.
  CrossEntropyArgs chunk(const Tensor& logits, int64_t begin) const {
    const int64_t size = accumulate_type(x) == ScalarType::Double ? sizeof(double) : sizeof(float);
    const auto at = [&](const Tensor& rows_of_it) {
      return static_cast<char*>(rows_of_it.mutable_data_ptr()) + begin * size;
    };
    return {logits.const_data_ptr(),
            static_cast<const int64_t*>(target.const_data_ptr()) + begin,
            class_weight.has_value() ? class_weight->const_data_ptr() : nullptr,
            at(loss),
            at(logsumexp),
            wants_any() ? logits.mutable_data_ptr() : nullptr,
            row_grad.has_value() ? at(*row_grad) : nullptr,
            logits.sizes()[0],
            classes,
            classes,
            options.ignore_index,
            1 - options.label_smoothing,
            options.label_smoothing / static_cast<double>(classes),
            options.z_loss,
            options.softcap,
            dtype_of(logits)};
  }

 private:
  static void check_matrix(const char* op, Argument argument, const char* shape) {
    check_floating(op, argument);
    if (argument.tensor.dim() != 2) {
      fail(op, std::string(argument.name) + " must have shape " + shape + ", got " +
                   describe(argument.tensor.sizes()));
    }
  }

  std::optional<Tensor> per_class(const char* op, const char* name,
                                  const std::optional<Tensor>& given, Argument x) const {
    if (!given.has_value()) {
      return std::nullopt;
    }
    check_matches(op, {name, *given}, x);
    check_sizes(op, {name, *given}, {&classes, 1}, "classes");
    return as_contiguous(*given);
  }

  Tensor gradient(bool is_wanted, IntHeaderOnlyArrayRef sizes, ScalarType dtype) const {
    const int64_t nothing[] = {0};
    return empty_contiguous(is_wanted ? sizes : IntHeaderOnlyArrayRef(nothing, 1), dtype, x);
  }
};

// What a backend does with a chunk.
class LinearCrossEntropyBackend {
 public:
  // to = x * transposed weight + bias
  virtual void logits(const Tensor& x, const Tensor& to) const = 0;
  // to = grad * weight
  virtual void grad_x(const Tensor& grad, const Tensor& to) const = 0;
  // sum (+)= transposed grad * x
  virtual void add(const Tensor& grad, const Tensor& x, const Tensor& sum, bool first) = 0;
  // sum (+)= the sum of the rows of grad
  virtual void add_rows(const Tensor& grad, const Tensor& sum, bool first) const = 0;

  void run(LinearCrossEntropy& call, ScalarType dtype) {
    if (call.class_weight.has_value()) {
      call.class_weight = as_type(*call.class_weight, dtype);
    }
    if (call.rows == 0) {
      torch::stable::zero_(call.grad_weight);
      torch::stable::zero_(call.grad_bias);
      return;
    }
    const int64_t rows = chunk_rows(call);
    const Tensor memory = empty_matrix(rows, call.classes, dtype, call.x);
    for (int64_t begin = 0; begin < call.rows; begin += rows) {
      const int64_t count = std::min(rows, call.rows - begin);
      const Tensor chunk = part(memory, 0, 0, count);
      const Tensor x = part(call.x, 0, begin, count);
      logits(x, chunk);
      cross_entropy_launch(call.chunk(chunk, begin), stream_);
      if (call.wanted.x) {
        grad_x(chunk, part(call.grad_x, 0, begin, count));
      }
      if (call.wanted.weight) {
        add(chunk, x, call.grad_weight, begin == 0);
      }
      if (call.wanted.bias) {
        add_rows(chunk, call.grad_bias, begin == 0);
      }
    }
  }

 protected:
  // A chunk has `least_rows` at least, which keep the products efficient, and more while it takes no
  // more than `most_bytes`, nor an eighth of what all logits would take in the dtype of x.
  LinearCrossEntropyBackend(Stream stream, int64_t least_rows, int64_t most_bytes,
                            int64_t bytes_per_logit)
      : stream_(stream),
        least_rows_(least_rows),
        most_bytes_(most_bytes),
        bytes_per_logit_(bytes_per_logit) {}

  Stream stream_;

  static Tensor empty_matrix(int64_t rows, int64_t columns, ScalarType dtype, const Tensor& like) {
    const int64_t sizes[] = {rows, columns};
    return empty_contiguous({sizes, 2}, dtype, like);
  }

 private:
  int64_t chunk_rows(const LinearCrossEntropy& call) const {
    const auto size = static_cast<int64_t>(call.x.element_size());
    const int64_t most = std::max(least_rows_, call.rows * size / (8 * bytes_per_logit_) + 1);
    const int64_t rows =
        std::clamp(most_bytes_ / (call.classes * bytes_per_logit_), least_rows_, most);
    return std::min(call.rows, rows);
  }

  int64_t least_rows_;
  int64_t most_bytes_;
  int64_t bytes_per_logit_;
};

// By products of ATen's, in the dtype of the operands.
class AtenLinearCrossEntropy : public LinearCrossEntropyBackend {
 public:
  void logits(const Tensor& x, const Tensor& to) const override {
    aten_linear(x, call_.weight, call_.bias, to);
  }

  void grad_x(const Tensor& grad, const Tensor& to) const override {
    aten_product(grad, call_.weight, to);
  }

  // In slices, because ATen's products round to the dtype of their operands: each is added while
  // the cache still has it.
  void add(const Tensor& grad, const Tensor& x, const Tensor& sum, bool first) override {
    const int64_t features = x.sizes()[1];
    if (first && grad.scalar_type() == sum.scalar_type()) {
      return aten_product(transposed(grad), x, sum);
    }
    const int64_t width = std::min(
        call_.classes, std::max<int64_t>(1, slice_size_ / std::max<int64_t>(features, 1)));
    // Once for all chunks: an allocator may not find the room again that it has just got back.
    if (!slice_.has_value()) {
      slice_ = empty_matrix(width, features, grad.scalar_type(), grad);
    }
    for (int64_t begin = 0; begin < call_.classes; begin += width) {
      const int64_t count = std::min(width, call_.classes - begin);
      aten_product(transposed(part(grad, 1, begin, count)), x, part(*slice_, 0, 0, count));
      add_to_sum({slice_->const_data_ptr(), part(sum, 0, begin, count).mutable_data_ptr(),
                  count * features, dtype_of(grad), first});
    }
  }

 protected:
  AtenLinearCrossEntropy(const LinearCrossEntropy& call, Stream stream, int64_t least_rows,
                         int64_t most_bytes, int64_t slice_size)
      : LinearCrossEntropyBackend(stream, least_rows, most_bytes,
                                  static_cast<int64_t>(call.x.element_size())),
        call_(call),
        slice_size_(slice_size) {}

  void add_to_sum(const AddToSumArgs& args) const { add_to_sum_launch(args, stream_); }

 private:
  const LinearCrossEntropy& call_;
  int64_t slice_size_;
  std::optional<Tensor> slice_;
};

// Each kernel library has its own, in loss/linear_cross_entropy.cc: the first fills the results of a
// call, the second adds up the losses of its rows.
void compute(const char* op, LinearCrossEntropy& call);
Tensor sum_of_losses(const Tensor& losses);

}  // namespace fusewheel
