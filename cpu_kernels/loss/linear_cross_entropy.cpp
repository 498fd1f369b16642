// Cross entropy of x @ weight^T + bias and a row's class, and the gradients of all three

#include <fusewheel/loss/linear_cross_entropy.h>

#include "cross_entropy.h"
#include "simd/vec.h"

namespace fusewheel {

// sum = the sum of the rows of `from`, or is increased by it
struct SumRowsArgs {
  const void* from;
  void* sum;  // [columns] in the accumulation type
  int64_t rows;
  int64_t columns;
  Dtype dtype;  // of `from`
  bool first;
};

}  // namespace fusewheel

FUSEWHEEL_DECLARE(void add_to_sum_range(const AddToSumArgs&, int64_t begin, int64_t end));
FUSEWHEEL_DECLARE(void sum_rows_columns(const SumRowsArgs&, int64_t begin, int64_t end));

namespace fusewheel::FUSEWHEEL_ISA {

void add_to_sum_range(const AddToSumArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulate<T>;
    const auto* from = static_cast<const T*>(args.from) + begin;
    auto* sum = static_cast<A*>(args.sum) + begin;
    for_each_vector<A>(end - begin, [&](int64_t i, int64_t live) {
      const Vec<A> value = load(from + i, live);
      store(sum + i, args.first ? value : load(sum + i, live) + value, live);
    });
  });
}

// For columns [begin, end).
void sum_rows_columns(const SumRowsArgs& args, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 64;  // rows that are added up before their sum is: it rounds less
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulate<T>;
    const auto* from = static_cast<const T*>(args.from) + begin;
    auto* sum = static_cast<A*>(args.sum) + begin;
    for (int64_t row = 0; row < args.rows; row += kBlock) {
      const int64_t last = row + kBlock < args.rows ? row + kBlock : args.rows;
      for_each_vector<A>(end - begin, [&](int64_t i, int64_t live) {
        Vec<A> total = {};
        for (int64_t k = row; k < last; ++k) {
          total += load(from + k * args.columns + i, live);
        }
        store(sum + i, args.first && row == 0 ? total : load(sum + i, live) + total, live);
      });
    }
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include "matmul/matmul.h"
#include "parallel.h"

namespace fusewheel {
namespace {

constexpr int64_t kLeastRows = 512;
constexpr int64_t kMostBytes = 1 << 26;
constexpr int64_t kSliceSize = 1 << 21;  // elements: what a cache holds

void loss_rows(const CrossEntropyArgs& args) {
  parallel_rows(FUSEWHEEL_SELECT(cross_entropy_rows), args, args.count, args.classes);
}

void sum_of_rows(const Tensor& grad, const Tensor& sum, bool first) {
  const auto sizes = grad.sizes();
  parallel_columns(FUSEWHEEL_SELECT(sum_rows_columns),
                   SumRowsArgs{grad.const_data_ptr(), sum.mutable_data_ptr(), sizes[0], sizes[1],
                               dtype_of(grad), first},
                   sizes[1], sizes[0]);
}

class Aten final : public AtenLinearCrossEntropy {
 public:
  explicit Aten(const LinearCrossEntropy& call)
      : AtenLinearCrossEntropy(call, kLeastRows, kMostBytes, kSliceSize) {}

  void loss(const CrossEntropyArgs& args) const override { loss_rows(args); }

  void add_rows(const Tensor& grad, const Tensor& sum, bool first) const override {
    sum_of_rows(grad, sum, first);
  }

 private:
  void add_to_sum(const AddToSumArgs& args) const override {
    const auto range = FUSEWHEEL_SELECT(add_to_sum_range);
    parallel_for(args.count, kGrain,
                 [&](int64_t begin, int64_t end) { range(args, begin, end); });
  }
};

// Operands that ATen would multiply slowly: logits and sums in float32.
class Own final : public LinearCrossEntropyBackend {
 public:
  explicit Own(const LinearCrossEntropy& call)
      : LinearCrossEntropyBackend(kLeastRows, kMostBytes, sizeof(float)),
        call_(call),
        weight_(CheckedWeight::floating("linear_cross_entropy", {"weight", call.weight},
                                        {"x", call.x})) {}

  void logits(const Tensor& x, const Tensor& to) const override {
    Tensor y = to;
    matmul(rows_in(x), weight_.weight, call_.bias, y);
  }

  void loss(const CrossEntropyArgs& args) const override { loss_rows(args); }

  void add_rows(const Tensor& grad, const Tensor& sum, bool first) const override {
    sum_of_rows(grad, sum, first);
  }

  void grad_x(const Tensor& grad, const Tensor& to) const override {
    Tensor y = to;
    matmul_transposed(rows_in(grad), weight_.weight, y);
  }

  // In slices of classes: the product makes a transposed copy of the logits' gradient.
  void add(const Tensor& grad, const Tensor& x, const Tensor& sum, bool first) override {
    if (!transposed_.has_value()) {
      const int64_t rows = grad.sizes()[0];
      const int64_t width = std::max<int64_t>(1, kSliceSize / rows);
      transposed_ = empty_matrix(std::min(call_.classes, width), rows, ScalarType::Float, grad);
    }
    const int64_t width = transposed_->sizes()[0];
    for (int64_t begin = 0; begin < call_.classes; begin += width) {
      const int64_t count = std::min(width, call_.classes - begin);
      Tensor y = part(sum, 0, begin, count);
      matmul_gradient(rows_in(part(grad, 1, begin, count)), rows_in(x), y, !first, transposed_);
    }
  }

 private:
  // Also of rows without any element.
  static Rows rows_in(const Tensor& matrix) {
    Rows rows = rows_of(matrix);
    rows.count = matrix.sizes()[0];
    return rows;
  }

  const LinearCrossEntropy& call_;
  const CheckedWeight weight_;
  std::optional<Tensor> transposed_;
};

// Whether ATen multiplies by the weight as fast as this CPU can.
bool is_fast_in_aten(const Tensor& weight) {
  switch (weight.scalar_type()) {
    case ScalarType::Double: return true;
    case ScalarType::BFloat16: return !choices().own_bfloat16;
    case ScalarType::Half: return !choices().own_float16;
    default:  // a transposed weight would have to be copied
      return !choices().own_float32 || weight.strides()[1] != 1;
  }
}

void run(const char* op, LinearCrossEntropy& call) {
  check_targets(op, call.target, call.classes, call.options.ignore_index);
  const ScalarType dtype = call.x.scalar_type();
  if (is_fast_in_aten(call.weight)) {
    Aten(call).run(call, dtype);
  } else {
    Own(call).run(call, ScalarType::Float);
  }
}

// In one order, whatever the number of threads.
template <typename A>
void sum_rows(const Tensor& rows, const Tensor& sum) {
  const auto* from = static_cast<const A*>(rows.const_data_ptr());
  double total = 0;
  for (int64_t n = 0; n < rows.numel(); ++n) {
    total += static_cast<double>(from[n]);
  }
  *static_cast<A*>(sum.mutable_data_ptr()) = static_cast<A>(total);
}

Tensor sum_of(const Tensor& rows) {
  const Tensor sum = empty_contiguous({}, rows.scalar_type(), rows);
  rows.scalar_type() == ScalarType::Double ? sum_rows<double>(rows, sum)
                                           : sum_rows<float>(rows, sum);
  return sum;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> linear_cross_entropy(
    const Tensor& x, const Tensor& weight, const Tensor& target, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& class_weight, int64_t ignore_index, double label_smoothing,
    double z_loss, double softcap, bool summed, bool needs_x, bool needs_weight, bool needs_bias) {
  constexpr const char* op = "linear_cross_entropy";
  LinearCrossEntropy call(op, x, weight, target, bias, class_weight,
                          {ignore_index, label_smoothing, z_loss, softcap},
                          {needs_x, needs_weight, needs_bias});
  run(op, call);
  return {summed ? sum_of(call.loss) : call.loss, call.grad_x, call.grad_weight, call.grad_bias};
}

std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy_backward(
    const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& target,
    const std::optional<Tensor>& bias, const std::optional<Tensor>& class_weight,
    int64_t ignore_index, double label_smoothing, double z_loss, double softcap, bool needs_x,
    bool needs_weight, bool needs_bias) {
  constexpr const char* op = "linear_cross_entropy_backward";
  LinearCrossEntropy call(op, x, weight, target, bias, class_weight,
                          {ignore_index, label_smoothing, z_loss, softcap},
                          {needs_x, needs_weight, needs_bias}, grad);
  run(op, call);
  return {call.grad_x, call.grad_weight, call.grad_bias};
}

FUSEWHEEL_KERNELS(library) {
  kernel<linear_cross_entropy>(library, "linear_cross_entropy");
  kernel<linear_cross_entropy_backward>(library, "linear_cross_entropy_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
