// Products of few rows that are sorted by group, each with its group's weight in stored blocks.

#include "grouped_linear.h"

#include "grouped_products.h"

namespace fusewheel {

void grouped_linear_blocks_launch(const GroupedProductArgs& args, Stream stream) {
  const int64_t columns = args.weights.first.rows;
  const int64_t items = args.ends.rows * columns;
  const auto run = [&](auto zero, const auto& weight) {
    using X = decltype(zero);
    launch("grouped_linear_blocks", grouped_products<X, std::decay_t<decltype(weight)>>,
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

}  // namespace fusewheel
