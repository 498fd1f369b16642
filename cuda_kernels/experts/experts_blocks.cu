// The experts of a mixture, with weights in stored blocks.

#include "experts_layers.h"

namespace fusewheel {
namespace {

// Calls body(zero, rows) with a zero of the dtype of sums.
template <typename Body>
void for_block_rows(const ExpertLayer& layer, const Body& body) {
  for_block_kind(layer.weights.first.blocks.kind, [&](auto decoder) {
    const BlockRows<decltype(decoder)> weight(layer.weights);
    if (layer.from_dtype == Dtype::kFloat64) {
      body(double{}, weight);
    } else {
      body(float{}, weight);
    }
  });
}

}  // namespace

void experts_first_blocks_launch(const ExpertsFirstArgs& args, Stream stream) {
  for_block_rows(args.layer, [&](auto zero, const auto& weight) {
    launch_first<decltype(zero)>(args, weight, stream);
  });
}

void experts_last_blocks_launch(const ExpertsLastArgs& args, Stream stream) {
  for_block_rows(args.layer, [&](auto zero, const auto& weight) {
    launch_last<decltype(zero)>(args, weight, stream);
  });
}

}  // namespace fusewheel
