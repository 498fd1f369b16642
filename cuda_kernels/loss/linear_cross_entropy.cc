// linear_cross_entropy by products of ATen's around the row kernel of cross_entropy.

#include <fusewheel/loss/linear_cross_entropy.h>

namespace fusewheel {
namespace {

constexpr int64_t kLeastRows = 1024;
constexpr int64_t kMostBytes = 1 << 28;
constexpr int64_t kSliceSize = 1 << 24;

class AtenProducts final : public AtenLinearCrossEntropy {
 public:
  AtenProducts(const LinearCrossEntropy& call, Stream stream)
      : AtenLinearCrossEntropy(call, stream, kLeastRows, kMostBytes, kSliceSize) {}

  void add_rows(const Tensor& grad, const Tensor& sum, bool first) const override {
    const int64_t rows[] = {0};
    const Tensor total =
        torch::stable::sum(grad, IntHeaderOnlyArrayRef(rows, 1), false, sum.scalar_type());
    add_to_sum({total.const_data_ptr(), sum.mutable_data_ptr(), sum.numel(), dtype_of(sum), first});
  }
};

}  // namespace

void compute(const char* op, LinearCrossEntropy& call) {
  on_stream(op, call.x, [&](Stream stream) {
    AtenProducts(call, stream).run(call, call.x.scalar_type());
  });
}

Tensor sum_of_losses(const Tensor& losses) { return torch::stable::sum(losses); }

}  // namespace fusewheel
