// Products of few rows that are sorted by group, each with its group's weight in stored blocks; and of few
// rows with one such weight.

#include "grouped_linear.h"

#include "grouped_products.h"

namespace fusewheel {
namespace {

void launch_products(const char* op, const GroupedProductArgs& args, Stream stream) {
  const int64_t columns = args.weights.first.rows;
  const int64_t items = args.ends.rows * columns;
  const auto run = [&](auto zero, const auto& weight) {
    using X = decltype(zero);
    launch(op, grouped_products<X, std::decay_t<decltype(weight)>>,
           blocks_for(items, kProductWarps), product_block(), 0, stream, args, weight,
           InputRows<X>(args.x, args.x_stride), Divisor(columns), items);
  };
  if (args.dtype == Dtype::kFloat64) {
    return run(double{}, AnyBlockRows(args.weights));
  }
  for_block_kind(args.weights.first.blocks.kind, [&](auto decoder) {
    run(float{}, BlockRows<decltype(decoder)>(args.weights));
  });
}

}  // namespace

void grouped_linear_blocks_launch(const GroupedProductArgs& args, Stream stream) {
  launch_products("grouped_linear_blocks", args, stream);
}

void linear_blocks_launch(const LinearArgs& args, Stream stream) {
  launch_products("linear_blocks", one_group(args, false), stream);
}

}  // namespace fusewheel
