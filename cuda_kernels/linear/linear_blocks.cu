// Decodes a weight that is stored in blocks, for a product of many rows, a panel at a time. Products of few rows
// are in experts/grouped_linear_blocks.cu.

#include "args.h"
#include "block_stage.h"
#include "common/divide.h"
#include "decoded.h"

namespace fusewheel {
namespace {

constexpr int kDecodeWarps = 8;  // of a block

// Where the rows of a panel lie, and what they become.
struct BlockPanel {
  StoredBytes stored;
  const uint8_t* rows;
  int64_t stride;  // in bytes
  int64_t first;   // part of a row
  int64_t parts;   // of a row
  int64_t count;   // of rows
  void* to;
  int64_t step;

  template <typename Decoder>
  BlockPanel(Decoder, const LinearWeight& weight, const Panel& panel)
      : rows(static_cast<const uint8_t*>(weight.data) + panel.row * weight.stride),
        stride(weight.stride),
        first(panel.column / kBlockPart),
        parts(panel.columns / kBlockPart),
        count(panel.rows),
        to(panel.to),
        step(panel.step) {
    const int64_t bytes = weight.columns / Decoder::kWeights * Decoder::kBytes;
    const auto* begin = static_cast<const uint8_t*>(weight.data);
    stored = {begin, begin + (weight.rows - 1) * stride + bytes};
    if (stride == bytes && panel.columns == weight.columns) {
      parts *= count;
      count = 1;
    }
  }
};

// A warp decodes a run of parts. A lane has N weights at a time, as many as it writes at once.
template <typename Decoder, int N>
__global__ void __launch_bounds__(kWarp* kDecodeWarps, 4)  // half of the warps there can be
    decode_blocks(const __grid_constant__ BlockPanel panel, Divisor runs, int64_t items) {
  using Stage = BlockStage<Decoder>;
  __shared__ Stage stages[kDecodeWarps];
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kDecodeWarps;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kDecodeWarps + threadIdx.y; item < items;
       item += warps) {
    const int64_t row = runs.divide(item);
    const int64_t begin = (item - row * runs.divisor) * Stage::kRun;
    const auto run = stages[threadIdx.y].fill(panel.stored, panel.rows + row * panel.stride,
                                              panel.first + begin, panel.parts - begin);
    const int64_t first = (row * panel.parts + begin) * kBlockPart;
    run.template for_own<N>(
        [&](int i, const float(&weights)[N]) { write_weights(weights, panel.to, panel.step, first + i); });
  }
}

}  // namespace

void linear_blocks_dequantise_launch(const LinearWeight& weight, const Panel& panel,
                                     Stream stream) {
  if (panel.rows == 0 || panel.columns == 0) {
    return;
  }
  for_block_kind(weight.blocks.kind, [&](auto decoder) {
    using Decoder = decltype(decoder);
    const BlockPanel own(decoder, weight, panel);
    const int64_t runs = (own.parts + BlockStage<Decoder>::kRun - 1) / BlockStage<Decoder>::kRun;
    const int64_t items = own.count * runs;
    const auto kernel = panel.dtype == Dtype::kFloat32
                            ? decode_blocks<Decoder, kFloats>
                            : decode_blocks<Decoder, kSums>;
    launch("linear_blocks", kernel, blocks_for(items, kDecodeWarps), dim3(kWarp, kDecodeWarps), 0,
           stream, own, Divisor(runs), items);
  });
}

}  // namespace fusewheel
