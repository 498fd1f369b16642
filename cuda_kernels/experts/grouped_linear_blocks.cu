// Products of rows that are sorted by group, each with its group's weight in stored blocks.
//
// A lane decodes a part of a row of the weight at a time. Of the gradient of x a warp has as many
// neighbours as it has lanes.

#include "grouped_linear.h"

#include "grouped_products.h"

namespace fusewheel {
namespace {

static_assert(kBlockPart == kWarp, "a lane for each weight of a part");

// Backward: part `own` of all rows of the weight.
template <typename A, typename Decoder>
__global__ void __launch_bounds__(kWarp* kProductWarps, 1)
    grouped_blocks_backward(const __grid_constant__ GroupedProductArgs args,
                            const BlockRows<Decoder> weight, const InputRows<A> x, Divisor across,
                            int64_t items) {
  const int lane = threadIdx.x;
  for_items(items, across, [&](int64_t item, int64_t row, int64_t own) {
    const int64_t group = group_of(args.ends, row);
    A sums[kBlockPart] = {};
    if (group < args.ends.count) {
      for (int64_t i = lane; i < args.weights.first.rows; i += kWarp) {
        float w[kBlockPart];
        weight.read(group, i, own, w);
        const A factor = x.data[row * x.stride + i];
#pragma unroll
        for (int j = 0; j < kBlockPart; ++j) {
          sums[j] = multiply_add(factor, static_cast<A>(w[j]), sums[j]);
        }
      }
    }
    A found = 0;
#pragma unroll
    for (int j = 0; j < kBlockPart; ++j) {
      const A sum = warp_sum(sums[j]);
      found = lane == j ? sum : found;
    }
    store_one(found, args.y, args.dtype, item * kBlockPart + lane);
  });
}

}  // namespace

void grouped_linear_blocks_launch(const GroupedProductArgs& args, Stream stream) {
  const int64_t across =
      args.backward ? args.weights.first.columns / kBlockPart : args.weights.first.rows;
  const int64_t items = args.ends.rows * across;
  for_block_kind(args.weights.first.blocks.kind, [&](auto decoder) {
    using Decoder = decltype(decoder);
    const auto run = [&](auto zero) {
      using A = decltype(zero);
      launch("grouped_linear_blocks",
             args.backward ? grouped_blocks_backward<A, Decoder>
                           : grouped_products<A, BlockRows<Decoder>>,
             blocks_for(items, kProductWarps), product_block(), 0, stream, args,
             BlockRows<Decoder>(args.weights), InputRows<A>(args.x, args.x_stride), Divisor(across),
             items);
    };
    if (args.dtype == Dtype::kFloat64) {
      run(double{});
    } else {
      run(float{});
    }
  });
}

}  // namespace fusewheel
