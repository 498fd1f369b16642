// Decodes a weight that is stored in blocks. Products with it are ATen's, a panel at a time.

#include "args.h"
#include "common/divide.h"
#include "common/launch.h"

#define FUSEWHEEL_DECODER __device__ inline
#include <fusewheel/linear/block_decode.h>

namespace fusewheel {
namespace {

constexpr int kDecodeThreads = 256;

// A part of a block a thread.
template <typename A, typename Decoder>
__global__ void __launch_bounds__(kDecodeThreads)
    decode_blocks(const __grid_constant__ LinearWeight weight, const Panel panel, Divisor parts,
                  int64_t items) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kDecodeThreads;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kDecodeThreads + threadIdx.x;
       item < items; item += threads) {
    const int64_t row = parts.divide(item);
    const int64_t k = (item - row * parts.divisor) * kBlockPart;
    const int64_t stored = panel.column + k;
    const auto* block = static_cast<const uint8_t*>(weight.data) +
                        (panel.row + row) * weight.stride +
                        stored / Decoder::kWeights * Decoder::kBytes;
    float values[kBlockPart];
    Decoder::decode(block, static_cast<int>(stored % Decoder::kWeights / kBlockPart), values);
    A* to = static_cast<A*>(panel.to) + row * panel.columns + k;
#pragma unroll
    for (int i = 0; i < kBlockPart; ++i) {
      to[i] = values[i];
    }
  }
}

}  // namespace

void linear_blocks_dequantise_launch(const LinearWeight& weight, const Panel& panel,
                                     Stream stream) {
  const int64_t parts = panel.columns / kBlockPart;
  const int64_t items = panel.rows * parts;
  if (items == 0) {
    return;
  }
  for_block_kind(weight.blocks.kind, [&](auto decoder) {
    using Decoder = decltype(decoder);
    const auto run = [&](auto zero) {
      launch("linear_blocks", decode_blocks<decltype(zero), Decoder>,
             blocks_for(items, kDecodeThreads), kDecodeThreads, 0, stream, weight, panel,
             Divisor(parts), items);
    };
    if (panel.dtype == Dtype::kFloat64) {
      run(double{});
    } else {
      run(float{});
    }
  });
}

}  // namespace fusewheel
