// Products of rows that are sorted by group, each with its group's weight.

#include "grouped_linear.h"

#include "common/rows.h"
#include "grouped_products.h"
#include "grouped_tiles.h"

namespace fusewheel {
namespace {

template <typename A>
__device__ void write_gradient(const GroupedGradientArgs& args, const TileSums<A>& sums,
                               int64_t matrix, int64_t first, int64_t column, bool aligned) {
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const int64_t row = first + sums.row() + r;
    const int64_t at = (matrix + row) * args.x_columns + column;
    const int64_t left = args.x_columns - column;
    const bool exists = row < args.grad_columns;
    write_row(sums, r, exists, args.to, args.to_dtype, at, left, aligned);
  }
}

// A block has 64 rows and 64 columns of a group's gradient.
template <typename T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<Accumulate<T>>)
    grouped_gradients(const __grid_constant__ GroupedGradientArgs args,
                      const TileSource<T, false> grad, const TileSource<T, false> x, Divisor down,
                      Divisor across, int64_t items, bool aligned) {
  using A = Accumulate<T>;
  __shared__ Tile<A> tiles[2];
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t of_all = across.divide(item);
    const int64_t group = down.divide(of_all);
    const int64_t column = (item - of_all * across.divisor) * kTile;
    const int64_t row = (of_all - group * down.divisor) * kTile;
    const int64_t begin = group == 0 ? 0 : end_of(args.ends, group - 1);
    const int64_t end = end_of(args.ends, group);
    TileSums<A> sums;
    multiply_tiles(grad, {row, args.grad_columns, begin, end}, x,
                   {column, args.x_columns, begin, end}, tiles, sums);
    write_gradient(args, sums, group * args.grad_columns, row, column, aligned);
  }
}

template <typename T>
void launch_products(const GroupedProductArgs& args, Stream stream) {
  constexpr const char* op = "grouped_linear";
  const GroupWeights& weights = args.weights;
  const LinearWeight& stored = weights.first;
  const bool along = weights.transposed == args.backward;
  const int64_t columns = along ? stored.rows : stored.columns;
  const int64_t inner = along ? stored.columns : stored.rows;
  const GroupTiles all{{0, args.ends.count}, weights.step, 0, columns, columns, inner};
  const bool same = stored.dtype == args.dtype;
  const bool few = !args.backward && args.ends.rows <= kFewRowsOfGroup * args.ends.count;
  if (same && along && few) {
    using Rows = std::conditional_t<kAsAny<T>, AnyRows<T>, DenseRows<T>>;
    const int64_t items = args.ends.rows * columns;
    return launch(op, grouped_products<T, Rows>, blocks_for(items, kProductWarps), product_block(),
                  0, stream, args, Rows(weights), InputRows<T>(args.x, args.x_stride),
                  Divisor(columns), items);
  }
  if constexpr (!kAsAny<T>) {
    if (same && along) {
      const TileSource<T, true> weight(stored.data, stored.stride, weights.step);
      return launch_tiles<T>(op, args, all, weight, stream);
    }
    if (same) {
      const TileSource<T, false> weight(stored.data, stored.stride, weights.step);
      return launch_tiles<T>(op, args, all, weight, stream);
    }
  }
  const AnyTileSource<T> weight{static_cast<const char*>(stored.data), stored.dtype,
                                along ? stored.stride : 1, along ? 1 : stored.stride};
  launch_tiles<T>(op, args, all, weight, stream);
}

// Forward, a part of the weight lies as its rows do; backward, it is multiplied from the other side.
void launch_decoded(const GroupedProductArgs& args, const DecodedGroups& part, Stream stream) {
  constexpr const char* op = "grouped_linear_blocks";
  const int64_t width = args.backward ? part.columns : part.inner;
  const GroupTiles tiles{{part.first, part.last},
                         part.columns * part.inner * static_cast<int64_t>(sizeof(float)),
                         part.column,
                         part.columns,
                         args.backward ? args.weights.first.columns : args.weights.first.rows,
                         part.inner};
  if (args.dtype == Dtype::kFloat64) {
    const AnyTileSource<double> weight{reinterpret_cast<const char*>(part.numbers), Dtype::kFloat32,
                                       args.backward ? 1 : width, args.backward ? width : 1};
    launch_tiles<double>(op, args, tiles, weight, stream);
  } else if (args.backward) {
    const TileSource<float, false> weight(part.numbers, width, tiles.step);
    launch_tiles<float>(op, args, tiles, weight, stream);
  } else {
    const TileSource<float, true> weight(part.numbers, width, tiles.step);
    launch_tiles<float>(op, args, tiles, weight, stream);
  }
}

}  // namespace

void grouped_linear_launch(const GroupedProductArgs& args, Stream stream) {
  for_dtype(args.dtype, [&](auto zero) { launch_products<decltype(zero)>(args, stream); });
}

void grouped_decoded_launch(const GroupedProductArgs& args, const DecodedGroups& part,
                            Stream stream) {
  launch_decoded(args, part, stream);
}

void grouped_linear_backward_weight_launch(const GroupedGradientArgs& args, Stream stream) {
  const int64_t down = tiles_of(args.grad_columns);
  const int64_t across = tiles_of(args.x_columns);
  const int64_t items = args.ends.count * down * across;
  bool aligned = false;
  for_dtype(args.to_dtype, [&](auto zero) {
    aligned = has_vectors(args.to, args.x_columns, kLanes<decltype(zero)>);
  });
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch("grouped_linear_backward_weight", grouped_gradients<T>, blocks_for(items, 1),
           tile_block(), 0, stream, args, TileSource<T, false>(args.grad, args.grad_stride),
           TileSource<T, false>(args.x, args.x_stride), Divisor(down), Divisor(across), items,
           aligned);
  });
}

}  // namespace fusewheel
