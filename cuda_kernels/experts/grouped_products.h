// Grouped products of few rows, for weights of every kind. A warp has one number of a matrix at a time;
// its lanes add up what they read, and then each other's sums, in an order that depends on sizes and
// dtypes alone.
#pragma once

#include "common/divide.h"
#include "row_groups.h"
#include "weight_rows.h"

namespace fusewheel {
namespace {

// Calls body(item, row, column) for the items of a matrix with so many columns that a warp has.
template <typename Body>
__device__ void for_items(int64_t items, const Divisor& columns, const Body& body) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; item < items;
       item += warps) {
    const auto row = static_cast<int64_t>(columns.divide(item));
    body(item, row, item - row * static_cast<int64_t>(columns.divisor));
  }
}

// x and sums in the types of X; y is in the dtype that the arguments say.
template <typename X, typename Weight>
__global__ void __launch_bounds__(kWarp* kProductWarps, 1)  // the 1: rather fewer blocks than spills
    grouped_products(const __grid_constant__ GroupedProductArgs args, const Weight weight,
                     const InputRows<X> x, Divisor columns, int64_t items) {
  for_items(items, columns, [&](int64_t item, int64_t row, int64_t column) {
    const int64_t group = group_of(args.ends, row);
    Accumulate<X> sum = 0;
    if (group < args.ends.count) {
      sum = warp_dot(weight, group, column, x, row);
    }
    if (threadIdx.x == 0) {
      if (args.bias != nullptr && group < args.ends.count) {
        sum += load_one<Accumulate<X>>(args.bias, args.bias_dtype, group * columns.divisor + column);
      }
      store_one(sum, args.y, args.dtype, item);
    }
  });
}

}  // namespace
}  // namespace fusewheel
