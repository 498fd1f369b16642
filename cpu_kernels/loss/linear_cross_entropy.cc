// linear_cross_entropy by products of ATen's or of matmul/, whichever are faster, around the row
// kernel of cross_entropy.

#include <fusewheel/linear/linear.h>
#include <fusewheel/loss/linear_cross_entropy.h>

#include "loss/sum_rows_args.h"
#include "matmul/prepare.h"
#include "matmul/products.h"
#include "processor.h"

namespace fusewheel {
namespace {

constexpr int64_t kLeastRows = 512;
constexpr int64_t kMostBytes = 1 << 26;
constexpr int64_t kSliceSize = 1 << 21;  // elements: what a cache holds

void sum_of_rows(const Tensor& grad, const Tensor& sum, bool first) {
  const auto sizes = grad.sizes();
  sum_rows_launch({grad.const_data_ptr(), sum.mutable_data_ptr(), sizes[0], sizes[1],
                   dtype_of(grad), first},
                  nullptr);
}

class AtenProducts final : public AtenLinearCrossEntropy {
 public:
  explicit AtenProducts(const LinearCrossEntropy& call)
      : AtenLinearCrossEntropy(call, nullptr, kLeastRows, kMostBytes, kSliceSize) {}

  void add_rows(const Tensor& grad, const Tensor& sum, bool first) const override {
    sum_of_rows(grad, sum, first);
  }
};

// Operands that ATen would multiply slowly: logits and sums in float32.
class OwnProducts final : public LinearCrossEntropyBackend {
 public:
  explicit OwnProducts(const LinearCrossEntropy& call)
      : LinearCrossEntropyBackend(nullptr, kLeastRows, kMostBytes, sizeof(float)),
        call_(call),
        weight_(CheckedWeight::floating("linear_cross_entropy", {"weight", call.weight},
                                        {"x", call.x})) {}

  void logits(const Tensor& x, const Tensor& to) const override {
    Tensor y = to;
    matmul(rows_in(x), weight_.weight, call_.bias, y, 0);
  }

  void add_rows(const Tensor& grad, const Tensor& sum, bool first) const override {
    sum_of_rows(grad, sum, first);
  }

  void grad_x(const Tensor& grad, const Tensor& to) const override {
    Tensor y = to;
    matmul_transposed(rows_in(grad), weight_.weight, y);
  }

  // In slices of classes: the product makes a copy of the logits' gradient.
  void add(const Tensor& grad, const Tensor& x, const Tensor& sum, bool first) override {
    if (!tiles_.has_value()) {
      const int64_t rows = grad.sizes()[0];
      const int64_t width = std::max<int64_t>(1, kSliceSize / rows);
      width_ = std::min(call_.classes, width);
      tiles_ = memory_for_tiles(width_, rows, false, grad);
    }
    for (int64_t begin = 0; begin < call_.classes; begin += width_) {
      const int64_t count = std::min(width_, call_.classes - begin);
      Tensor y = part(sum, 0, begin, count);
      matmul_gradient(rows_in(part(grad, 1, begin, count)), rows_in(x), y, !first, tiles_);
    }
  }

 private:
  // Also of rows without any element.
  static RowMatrix rows_in(const Tensor& matrix) {
    RowMatrix rows = rows_of(matrix);
    rows.count = matrix.sizes()[0];
    return rows;
  }

  const LinearCrossEntropy& call_;
  const CheckedWeight weight_;
  std::optional<Tensor> tiles_;
  int64_t width_ = 0;  // classes at a time
};

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

}  // namespace

void compute(const char*, LinearCrossEntropy& call) {
  // A transposed weight in float32 would have to be copied.
  const bool is_copied = call.weight.scalar_type() == ScalarType::Float &&
                         call.weight.strides()[1] != 1;
  if (is_copied || is_fast_in_aten(call.weight.scalar_type())) {
    AtenProducts(call).run(call, call.x.scalar_type());
  } else {
    OwnProducts(call).run(call, ScalarType::Float);
  }
}

Tensor sum_of_losses(const Tensor& rows) {
  const Tensor sum = empty_contiguous({}, rows.scalar_type(), rows);
  rows.scalar_type() == ScalarType::Double ? sum_rows<double>(rows, sum)
                                           : sum_rows<float>(rows, sum);
  return sum;
}

}  // namespace fusewheel
