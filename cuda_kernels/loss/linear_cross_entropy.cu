// Cross entropy of x * transposed weight + bias and a row's class, and the gradients of all three:
// products of ATen's around the row kernel of cross_entropy.

#include <fusewheel/loss/linear_cross_entropy_args.h>

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
