// Products of rows that are sorted by group, each with its group's weight in stored blocks.

#include "grouped_linear.h"

#include "grouped_products.h"
#include "grouped_tiles.h"

namespace fusewheel {
namespace {

// Forward, a part of the weight lies as its rows do; backward, it is multiplied from the other side.
template <typename X, typename Y>
void launch_decoded(const GroupedProductArgs& args, const DecodedGroups& part, Stream stream) {
  const int64_t width = args.backward ? part.columns : part.inner;
  const GroupTiles tiles{{part.first, part.last},
                         part.columns * part.inner * static_cast<int64_t>(sizeof(X)),
                         part.column,
                         part.columns,
                         args.backward ? args.weights.first.columns : args.weights.first.rows,
                         part.inner};
  constexpr const char* op = "grouped_linear_blocks";
  if (args.backward) {
    launch_tiles<X, Y>(op, args, tiles, TileSource<X, false>(part.numbers, width, tiles.step),
                       stream);
  } else {
    launch_tiles<X, Y>(op, args, tiles, TileSource<X, true>(part.numbers, width, tiles.step),
                       stream);
  }
}

}  // namespace

void grouped_decoded_launch(const GroupedProductArgs& args, const DecodedGroups& part,
                            Stream stream) {
  for_dtype(args.dtype, [&](auto zero) {
    using Y = decltype(zero);
    launch_decoded<Accumulate<Y>, Y>(args, part, stream);
  });
}

void grouped_linear_blocks_launch(const GroupedProductArgs& args, Stream stream) {
  const int64_t columns = args.weights.first.rows;
  const int64_t items = args.ends.rows * columns;
  for_block_kind(args.weights.first.blocks.kind, [&](auto decoder) {
    using Rows = BlockRows<decltype(decoder)>;
    const auto run = [&](auto zero) {
      using A = decltype(zero);
      launch("grouped_linear_blocks", grouped_products<A, Rows>, blocks_for(items, kProductWarps),
             product_block(), 0, stream, args, Rows(args.weights),
             InputRows<A>(args.x, args.x_stride), Divisor(columns), items);
    };
    if (args.dtype == Dtype::kFloat64) {
      run(double{});
    } else {
      run(float{});
    }
  });
}

}  // namespace fusewheel
