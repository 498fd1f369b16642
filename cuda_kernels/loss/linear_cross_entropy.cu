// Cross entropy of x * transposed weight + bias and a row's class, and the gradients of all three:
// products of ATen's around the row kernel of cross_entropy.

#include <fusewheel/loss/linear_cross_entropy.h>

#include "common/stream.h"

namespace fusewheel {
void cross_entropy_launch(const CrossEntropyArgs&, Stream);
void add_to_sum_launch(const AddToSumArgs&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

#include "common/rows.h"

namespace fusewheel {
namespace {

template <typename T, int V>
__global__ void add_to_sum(const AddToSumArgs args) {
  using A = Accumulate<T>;
  const auto* from = static_cast<const T*>(args.from);
  auto* sum = static_cast<A*>(args.sum);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * V;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
       i < args.count; i += step) {
    A values[V];
    load(from + i, values);
    if (!args.first) {
      A sums[V];
      load(sum + i, sums);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        values[k] += sums[k];
      }
    }
    store(sum + i, values);
  }
}

}  // namespace

void add_to_sum_launch(const AddToSumArgs& args, Stream stream) {
  if (args.count == 0) {
    return;
  }
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors = has_vectors(args.from, args.count, kLanes<T>) && is_aligned(args.sum);
    for_width<T>(vectors, [&](auto lanes) {
      constexpr int V = decltype(lanes)::value;
      constexpr int kThreads = 256;
      launch("linear_cross_entropy", add_to_sum<T, V>, blocks_for(args.count, kThreads * V),
             kThreads, 0, stream, args);
    });
  });
}

}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include "common/glue.h"

namespace fusewheel {
namespace {

constexpr int64_t kLeastRows = 1024;
constexpr int64_t kMostBytes = 1 << 28;
constexpr int64_t kSliceSize = 1 << 24;

class OnStream final : public AtenLinearCrossEntropy {
 public:
  OnStream(const LinearCrossEntropy& call, Stream stream)
      : AtenLinearCrossEntropy(call, kLeastRows, kMostBytes, kSliceSize), stream_(stream) {}

  void loss(const CrossEntropyArgs& args) const override { cross_entropy_launch(args, stream_); }

  void add_rows(const Tensor& grad, const Tensor& sum, bool first) const override {
    const int64_t rows[] = {0};
    const Tensor total =
        torch::stable::sum(grad, IntHeaderOnlyArrayRef(rows, 1), false, sum.scalar_type());
    add_to_sum({total.const_data_ptr(), sum.mutable_data_ptr(), sum.numel(), dtype_of(sum), first});
  }

 private:
  void add_to_sum(const AddToSumArgs& args) const override { add_to_sum_launch(args, stream_); }

  Stream stream_;
};

void run(const char* op, LinearCrossEntropy& call) {
  const OnDevice device(op, call.x);
  OnStream(call, device.stream()).run(call, call.x.scalar_type());
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
  return {summed ? torch::stable::sum(call.loss) : call.loss, call.grad_x, call.grad_weight,
          call.grad_bias};
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
