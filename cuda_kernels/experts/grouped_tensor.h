// Products of groups with many rows in half types, by tensor cores.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "common/divide.h"
#include "group_tiles.h"
#include "tensor_products.h"

namespace fusewheel {
namespace {

__device__ inline void add_bias(const GroupedProductArgs& args, const GroupTiles& part,
                                int64_t group, int64_t column, TensorSums& sums) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int64_t own = column + TensorSums::column(n) + k;
      if (own < part.columns) {
        const float bias = load_one<float>(args.bias, args.bias_dtype,
                                           group * part.y_columns + part.column + own);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          sums.sums[m][n][k] += bias;
          sums.sums[m][n][k + 2] += bias;
        }
      }
    }
  }
}

// Computes those elements of a piece that are not finite once more, by ordinary instructions: an infinity
// in x, times a weight that is a sum of parts, one of which is 0, has made them NaN.
template <typename T, typename Weight>
__device__ void mend_piece(T* piece, const GroupedProductArgs& args, const GroupTiles& part,
                           const Weight& weights, const TileSource<T, true>& x, int64_t group,
                           int64_t row, int64_t column) {
  float values[kPiece];
  load(piece, values);
  bool all_finite = true;
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    all_finite = all_finite && values[i] * 0 == 0;
  }
  if (all_finite) {
    return;
  }
  const Weight weight = weights.at((group - part.groups.first) * part.step);
#pragma unroll 1
  for (int i = 0; i < kPiece; ++i) {
    if (widen(piece[i]) * 0 == 0) {
      continue;
    }
    float sum = 0;
#pragma unroll 1
    for (int64_t inner = 0; inner < part.inner; ++inner) {
      float whole = 0;
#pragma unroll 1
      for (int matrix = 0; matrix < part.matrices; ++matrix) {
        whole += widen(*weight.at(matrix * part.matrix_step).from(column + i, inner));
      }
      sum = multiply_add(widen(*x.from(row, inner)), whole, sum);
    }
    if (args.bias != nullptr) {
      sum += load_one<float>(args.bias, args.bias_dtype,
                             group * part.y_columns + part.column + column + i);
    }
    narrow(sum, piece[i]);
  }
}

// How many blocks a multiprocessor should run at a time.
constexpr int kTensorBlocks = 3;

// A block has 64 rows of a group, and 128 columns.
template <typename T, typename Weight>
__global__ void __launch_bounds__(kTileThreads, kTensorBlocks)
    grouped_tensor_tiles(const __grid_constant__ GroupedProductArgs args, const GroupTiles part,
                         const Weight weight, const TileSource<T, true> x, Divisor across,
                         int64_t items) {
  if constexpr (kHasTensorCores) {
    FUSEWHEEL_DYNAMIC_SHARED(T, stages);
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
      const int64_t number = across.divide(item);
      const RowTile rows = row_tile(args.ends, part.groups, number, kTile);
      if (rows.begin == rows.end) {
        continue;
      }
      const int64_t column = (item - number * across.divisor) * kTensorColumns;
      TensorSums sums;
      __syncthreads();  // what was written before has been read
      if (rows.group < args.ends.count) {
        const Weight own = weight.at((rows.group - part.groups.first) * part.step);
        multiply_by_tensor_cores(x, {rows.begin, rows.end, 0, part.inner}, own,
                                 {column, part.columns, 0, part.inner}, part.matrices,
                                 part.matrix_step, stages, sums);
        if (args.bias != nullptr) {
          add_bias(args, part, rows.group, column, sums);
        }
      }
      const auto mend = [&](T* piece, int64_t row, int64_t at) {
        if (part.matrices > 1) {
          mend_piece(piece, args, part, weight, x, rows.group, row, at);
        }
      };
      sums.write(static_cast<T*>(args.y) + part.column, part.y_columns, rows.begin, rows.end,
                 column, part.columns, stages, mend);
    }
  }
}

// A block has 64 rows and 128 columns of a group's gradient.
template <typename T>
__global__ void __launch_bounds__(kTileThreads, kTensorBlocks)
    grouped_tensor_gradients(const __grid_constant__ GroupedGradientArgs args,
                             const TileSource<T, false> grad, const TileSource<T, false> x,
                             Divisor down, Divisor across, int64_t items) {
  if constexpr (kHasTensorCores) {
    FUSEWHEEL_DYNAMIC_SHARED(T, stages);
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
      const int64_t of_all = across.divide(item);
      const int64_t group = down.divide(of_all);
      const int64_t column = (item - of_all * across.divisor) * kTensorColumns;
      const int64_t row = (of_all - group * down.divisor) * kTile;
      const int64_t begin = group == 0 ? 0 : end_of(args.ends, group - 1);
      const int64_t end = end_of(args.ends, group);
      TensorSums sums;
      __syncthreads();  // what was written before has been read
      multiply_by_tensor_cores(grad, {row, args.grad_columns, begin, end}, x,
                               {column, args.x_columns, begin, end}, 1, 0, stages, sums);
      sums.write(static_cast<T*>(args.to) + group * args.grad_columns * args.x_columns,
                 args.x_columns, row, args.grad_columns, column, args.x_columns, stages,
                 [](T*, int64_t, int64_t) {});
    }
  }
}

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>;

// Whether sizes, and addresses, are of whole pieces.
inline bool has_pieces(std::initializer_list<int64_t> sizes,
                       std::initializer_list<const void*> addresses) {
  return std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n % kPiece == 0; }) &&
         std::all_of(addresses.begin(), addresses.end(), is_aligned);
}

template <typename T, typename Weight>
void launch_tensor_tiles(const char* op, const GroupedProductArgs& args, const GroupTiles& part,
                         const Weight& weight, Stream stream) {
  const int64_t across = tiles_of(part.columns, kTensorColumns);
  const int64_t items = part.groups.tiles(args.ends, kTile) * across;
  launch(op, grouped_tensor_tiles<T, Weight>, blocks_for(items, 1), tile_block(), kTensorBytes<T>,
         stream, args, part, weight, TileSource<T, true>(args.x, args.x_stride), Divisor(across),
         items);
}

// Whether tensor cores can multiply rows of x by weights that lie in whole pieces.
template <typename T, typename Weight>
bool can_use_tensor_cores(const char* op, const GroupedProductArgs& args, int64_t columns,
                          int64_t inner) {
  return has_pieces({args.x_stride, columns, inner}, {args.x, args.y}) &&
         has_tensor_cores(op, grouped_tensor_tiles<T, Weight>);
}

// Whether it has launched them.
template <typename T>
bool launch_tensor_gradients(const char* op, const GroupedGradientArgs& args, Stream stream) {
  const auto kernel = grouped_tensor_gradients<T>;
  if (args.to_dtype != args.dtype ||
      !has_pieces({args.grad_stride, args.grad_columns, args.x_stride, args.x_columns},
                  {args.grad, args.x, args.to}) ||
      !has_tensor_cores(op, kernel)) {
    return false;
  }
  const int64_t down = tiles_of(args.grad_columns);
  const int64_t across = tiles_of(args.x_columns, kTensorColumns);
  const int64_t items = args.ends.count * down * across;
  launch(op, kernel, blocks_for(items, 1), tile_block(), kTensorBytes<T>, stream, args,
         TileSource<T, false>(args.grad, args.grad_stride),
         TileSource<T, false>(args.x, args.x_stride), Divisor(down), Divisor(across), items);
  return true;
}

}  // namespace
}  // namespace fusewheel
