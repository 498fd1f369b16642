// Products of rows that are sorted by group, each with its group's weight in stored blocks.
//
// A warp has one number of a product, or of the gradient of x as many neighbours as it has lanes. A lane
// decodes a part of a row of the weight at a time. The order of the sums depends on the sizes alone.

#include "grouped_linear.h"

#include "common/divide.h"
#include "common/launch.h"
#include "common/reduce.h"
#include "common/vector.h"
#include "row_groups.h"

#define FUSEWHEEL_DECODER __device__ inline
#include <fusewheel/linear/block_decode.h>

namespace fusewheel {
namespace {

static_assert(kBlockPart == kWarp, "a lane for each weight of a part");

// `inner` parts of the row `own` of the weight or, backward, part `own` of `inner` rows.
template <typename A, typename Decoder>
__global__ void __launch_bounds__(kWarp* kProductWarps, 1)  // the 1: rather fewer blocks than spills
    grouped_blocks(const __grid_constant__ GroupedProductArgs args, Divisor across, int64_t inner,
                   int64_t items) {
  const LinearWeight& weight = args.weights.first;
  const int lane = threadIdx.x;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; item < items;
       item += warps) {
    const int64_t row = across.divide(item);
    const int64_t own = item - row * across.divisor;
    const int64_t group = group_of(args.ends, row);
    const bool has_group = group < args.ends.count;
    A sums[kBlockPart] = {};
    if (has_group) {
      const auto* x = static_cast<const A*>(args.x) + row * args.x_stride;
      const auto* data = static_cast<const uint8_t*>(weight.data) + group * args.weights.step;
      for (int64_t i = lane; i < inner; i += kWarp) {
        const int64_t weight_row = args.backward ? i : own;
        const int64_t k = (args.backward ? own : i) * kBlockPart;
        float w[kBlockPart];
        Decoder::decode(data + weight_row * weight.stride + k / Decoder::kWeights * Decoder::kBytes,
                        static_cast<int>(k % Decoder::kWeights / kBlockPart), w);
#pragma unroll
        for (int j = 0; j < kBlockPart; ++j) {
          const A factor = args.backward ? x[i] : x[k + j];
          sums[j] = multiply_add(factor, static_cast<A>(w[j]), sums[j]);
        }
      }
    }
    if (args.backward) {
      A found = 0;
#pragma unroll
      for (int j = 0; j < kBlockPart; ++j) {
        const A sum = warp_sum(sums[j]);
        found = lane == j ? sum : found;
      }
      store_one(found, args.y, args.dtype, item * kBlockPart + lane);
      continue;
    }
    A sum = 0;
#pragma unroll
    for (int j = 0; j < kBlockPart; ++j) {
      sum += sums[j];
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      if (args.bias != nullptr && has_group) {
        sum += load_one<A>(args.bias, args.bias_dtype, group * weight.rows + own);
      }
      store_one(sum, args.y, args.dtype, item);
    }
  }
}

}  // namespace

void grouped_linear_blocks_launch(const GroupedProductArgs& args, Stream stream) {
  const LinearWeight& weight = args.weights.first;
  const int64_t parts = weight.columns / kBlockPart;
  const int64_t across = args.backward ? parts : weight.rows;
  const int64_t inner = args.backward ? weight.rows : parts;
  const int64_t items = args.ends.rows * across;
  for_block_kind(weight.blocks.kind, [&](auto decoder) {
    using Decoder = decltype(decoder);
    const auto run = [&](auto zero) {
      launch("grouped_linear_blocks", grouped_blocks<decltype(zero), Decoder>,
             blocks_for(items, kProductWarps), product_block(), 0, stream, args, Divisor(across),
             inner, items);
    };
    if (args.dtype == Dtype::kFloat64) {
      run(double{});
    } else {
      run(float{});
    }
  });
}

}  // namespace fusewheel
