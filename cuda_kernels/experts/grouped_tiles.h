// Products of groups with many rows, by tiles.
#pragma once

#include "common/divide.h"
#include "group_tiles.h"
#include "tile_products.h"

namespace fusewheel {
namespace {

template <typename A>
__device__ void add_bias(const GroupedProductArgs& args, const GroupTiles& part, int64_t group,
                         int64_t column, TileSums<A>& sums) {
#pragma unroll
  for (int c = 0; c < kTileColumns; ++c) {
    const int64_t own = column + TileSums<A>::column(c / kLanes<A>) + c % kLanes<A>;
    if (own < part.columns) {
      const A bias = load_one<A>(args.bias, args.bias_dtype,
                                 group * part.y_columns + part.column + own);
#pragma unroll
      for (int r = 0; r < kTileRows; ++r) {
        sums.sums[r][c] += bias;
      }
    }
  }
}

// Writes the first row of the thread's sums from element `at` on.
template <typename A>
__device__ void write_row(const TileSums<A>& sums, bool exists, void* to, Dtype dtype,
                          int64_t at, int64_t left, bool aligned) {
  switch (dtype) {
    case Dtype::kFloat32:
      return sums.write(exists, static_cast<float*>(to) + at, left, aligned);
    case Dtype::kBFloat16:
      return sums.write(exists, static_cast<__nv_bfloat16*>(to) + at, left, aligned);
    case Dtype::kFloat16:
      return sums.write(exists, static_cast<__half*>(to) + at, left, aligned);
    case Dtype::kFloat64:
      if constexpr (sizeof(A) == sizeof(double)) {
        sums.write(exists, static_cast<double*>(to) + at, left, aligned);
      }
  }
}

// A block has 64 rows of a group, and 64 columns. x in float32 may have results in a half type.
template <typename X, typename Weight>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<Accumulate<X>>)
    grouped_tiles(const __grid_constant__ GroupedProductArgs args, const GroupTiles part,
                  const Weight weight, const TileSource<X, true> x, Divisor across, int64_t items,
                  bool aligned) {
  using A = Accumulate<X>;
  __shared__ Tile<A> tiles[2];
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t number = across.divide(item);
    const RowTile rows = row_tile(args.ends, part.groups, number, kTile);
    if (rows.begin == rows.end) {
      continue;
    }
    const int64_t column = (item - number * across.divisor) * kTile;
    TileSums<A> sums;
    if (rows.group < args.ends.count) {
      multiply_tiles(x, {rows.begin, rows.end, 0, part.inner},
                     weight.at((rows.group - part.groups.first) * part.step),
                     {column, part.columns, 0, part.inner}, tiles, sums);
      if (args.bias != nullptr) {
        add_bias(args, part, rows.group, column, sums);
      }
    }
    // In a loop, not four times in a row: the kernels would be a quarter larger.
#pragma unroll 1
    for (int r = 0; r < kTileRows; ++r, turn(sums.sums)) {
      const int64_t row = rows.begin + sums.row() + r;
      const int64_t at = row * part.y_columns + part.column + column;
      const bool exists = row < rows.end;
      if constexpr (std::is_same_v<X, float>) {
        write_row(sums, exists, args.y, args.dtype, at, part.columns - column, aligned);
      } else {
        sums.write(exists, static_cast<X*>(args.y) + at, part.columns - column, aligned);
      }
    }
  }
}

template <typename X, typename Weight>
void launch_tiles(const char* op, const GroupedProductArgs& args, const GroupTiles& part,
                  const Weight& weight, Stream stream) {
  const int64_t across = tiles_of(part.columns);
  const int64_t items = part.groups.tiles(args.ends, kTile) * across;
  bool aligned = is_aligned(args.y);
  for_dtype(args.dtype, [&](auto zero) {
    constexpr int V = kLanes<decltype(zero)>;
    aligned = aligned && part.y_columns % V == 0 && part.column % V == 0;
  });
  launch(op, grouped_tiles<X, Weight>, blocks_for(items, 1), tile_block(), 0, stream, args, part,
         weight, TileSource<X, true>(args.x, args.x_stride), Divisor(across), items, aligned);
}

}  // namespace
}  // namespace fusewheel
