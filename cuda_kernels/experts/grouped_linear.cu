// Products of rows that are sorted by group, each with its group's weight.

#include "grouped_linear.h"

#include "common/rows.h"
#include "grouped_products.h"
#include "grouped_tensor.h"
#include "grouped_tiles.h"

namespace fusewheel {
namespace {

template <typename A>
__device__ void write_gradient(const GroupedGradientArgs& args, TileSums<A>& sums,
                               int64_t matrix, int64_t first, int64_t column, bool aligned) {
#pragma unroll 1
  for (int r = 0; r < kTileRows; ++r, turn(sums.sums)) {
    const int64_t row = first + sums.row() + r;
    const int64_t at = (matrix + row) * args.x_columns + column;
    const int64_t left = args.x_columns - column;
    const bool exists = row < args.grad_columns;
    write_row(sums, exists, args.to, args.to_dtype, at, left, aligned);
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

// By tensor cores where they can.
template <typename T, typename Weight>
void launch_either(const char* op, const GroupedProductArgs& args, const GroupTiles& part,
                   const Weight& weight, Stream stream) {
  if constexpr (kIsHalf<T>) {
    if (weight.aligned && can_use_tensor_cores<T, Weight>(op, args, part.columns, part.inner)) {
      return launch_tensor_tiles<T>(op, args, part, weight, stream);
    }
  }
  launch_tiles<T>(op, args, part, weight, stream);
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
      return launch_either<T>(op, args, all, weight, stream);
    }
    if (same) {
      const TileSource<T, false> weight(stored.data, stored.stride, weights.step);
      return launch_either<T>(op, args, all, weight, stream);
    }
  }
  const AnyTileSource<T> weight{static_cast<const char*>(stored.data), stored.dtype,
                                along ? stored.stride : 1, along ? 1 : stored.stride};
  launch_tiles<T>(op, args, all, weight, stream);
}

GroupTiles decoded_tiles(const GroupedProductArgs& args, const DecodedGroups& part, int64_t bytes) {
  return {{part.first, part.last},
          part.columns * part.inner * bytes,
          part.column,
          part.columns,
          args.backward ? args.weights.first.columns : args.weights.first.rows,
          part.inner};
}

// Forward, a part of the weight lies as its rows do; backward, it is multiplied from the other side.
template <typename T, bool kAlongInner>
void launch_decoded(const char* op, const GroupedProductArgs& args, const DecodedGroups& part,
                    Stream stream) {
  const int64_t width = kAlongInner ? part.inner : part.columns;
  const GroupTiles tiles = decoded_tiles(args, part, sizeof(float));
  if constexpr (kAsAny<T>) {
    const AnyTileSource<T> weight{static_cast<const char*>(part.numbers), Dtype::kFloat32,
                                  kAlongInner ? width : 1, kAlongInner ? 1 : width};
    launch_tiles<T>(op, args, tiles, weight, stream);
  } else {
    const TileSource<T, kAlongInner> weight(part.numbers, width, tiles.step);
    launch_tiles<T>(op, args, tiles, weight, stream);
  }
}

// By tensor cores.
template <typename T, bool kAlongInner>
void launch_sums(const char* op, const GroupedProductArgs& args, const DecodedGroups& part,
                 Stream stream) {
  GroupTiles tiles = decoded_tiles(args, part, sizeof(__nv_bfloat16));
  tiles.matrices = kWeightParts;
  tiles.matrix_step = part.step;
  const TileSource<__nv_bfloat16, kAlongInner> weight(
      part.numbers, kAlongInner ? part.inner : part.columns, tiles.step);
  launch_tensor_tiles<T>(op, args, tiles, weight, stream);
}

template <bool kAlongInner>
void launch_decoded(const char* op, const GroupedProductArgs& args, const DecodedGroups& part,
                    Stream stream) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (kIsHalf<T>) {
      if (part.step > 0) {
        return launch_sums<T, kAlongInner>(op, args, part, stream);
      }
    }
    launch_decoded<Accumulate<T>, kAlongInner>(op, args, part, stream);
  });
}

}  // namespace

void grouped_linear_launch(const GroupedProductArgs& args, Stream stream) {
  for_dtype(args.dtype, [&](auto zero) { launch_products<decltype(zero)>(args, stream); });
}

void grouped_decoded_launch(const char* op, const GroupedProductArgs& args,
                            const DecodedGroups& part, Stream stream) {
  if (args.backward) {
    launch_decoded<false>(op, args, part, stream);
  } else {
    launch_decoded<true>(op, args, part, stream);
  }
}

bool grouped_decoded_takes_sums(const char* op, const GroupedProductArgs& args) {
  const LinearWeight& weight = args.weights.first;
  bool can = false;
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (kIsHalf<T>) {
      using Weight = TileSource<__nv_bfloat16, true>;
      can = can_use_tensor_cores<T, Weight>(op, args, weight.rows, weight.columns);
    }
  });
  return can;
}

void grouped_linear_backward_weight_launch(const GroupedGradientArgs& args, Stream stream) {
  constexpr const char* op = "grouped_linear_backward_weight";
  const int64_t down = tiles_of(args.grad_columns);
  const int64_t across = tiles_of(args.x_columns);
  const int64_t items = args.ends.count * down * across;
  bool aligned = false;
  for_dtype(args.to_dtype, [&](auto zero) {
    aligned = has_vectors(args.to, args.x_columns, kLanes<decltype(zero)>);
  });
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (kIsHalf<T>) {
      if (launch_tensor_gradients<T>(op, args, stream)) {
        return;
      }
    }
    launch(op, grouped_gradients<T>, blocks_for(items, 1),
           tile_block(), 0, stream, args, TileSource<T, false>(args.grad, args.grad_stride),
           TileSource<T, false>(args.x, args.x_stride), Divisor(down), Divisor(across), items,
           aligned);
  });
}

}  // namespace fusewheel
