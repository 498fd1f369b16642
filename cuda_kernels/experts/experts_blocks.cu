// The experts of a mixture, with weights in stored blocks.

#include "experts_layers.h"

namespace fusewheel {
namespace {

// Calls body(zero, rows) with a zero of the dtype of sums.
template <typename Body>
void for_block_rows(const ExpertLayer& layer, const Body& body) {
  if (layer.from_dtype == Dtype::kFloat64) {
    return body(double{}, AnyBlockRows(layer.weights));
  }
  for_block_kind(layer.weights.first.blocks.kind, [&](auto decoder) {
    body(float{}, BlockRows<decltype(decoder)>(layer.weights));
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
