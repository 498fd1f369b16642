// Products of rows that are sorted by group, each with its group's weight.
//
// A warp has one number of the result. Its lanes add up every 32nd product, and then each other's sums,
// in an order that depends on the sizes alone.

#include "grouped_linear.h"

#include "common/divide.h"
#include "common/reduce.h"
#include "common/vector.h"
#include "row_groups.h"

namespace fusewheel {
namespace {

template <typename T>
__global__ void __launch_bounds__(kWarp* kProductWarps)
    grouped_products(const __grid_constant__ GroupedProductArgs args, Divisor columns, int64_t inner,
             int64_t column_step, int64_t inner_step, int64_t items) {
  using A = Accumulate<T>;
  const LinearWeight& weight = args.weights.first;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; item < items;
       item += warps) {
    const int64_t row = columns.divide(item);
    const int64_t column = item - row * columns.divisor;
    const int64_t group = group_of(args.ends, row);
    A sum = 0;
    if (group < args.ends.count) {
      const auto* x = static_cast<const T*>(args.x) + row * args.x_stride;
      const auto* own = static_cast<const char*>(weight.data) + group * args.weights.step;
      for (int64_t k = threadIdx.x; k < inner; k += kWarp) {
        const A w = load_one<A>(own, weight.dtype, column * column_step + k * inner_step);
        sum = multiply_add(widen(x[k]), w, sum);
      }
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0) {
      if (args.bias != nullptr && group < args.ends.count) {
        sum += load_one<A>(args.bias, args.bias_dtype, group * columns.divisor + column);
      }
      store_one(sum, args.y, args.dtype, item);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kWarp* kProductWarps)
    grouped_gradients(const __grid_constant__ GroupedGradientArgs args, Divisor columns, Divisor rows,
              int64_t items) {
  using A = Accumulate<T>;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; item < items;
       item += warps) {
    const int64_t weight_row = columns.divide(item);
    const int64_t column = item - weight_row * columns.divisor;
    const int64_t group = rows.divide(weight_row);
    const int64_t output = weight_row - group * rows.divisor;
    const int64_t begin = group == 0 ? 0 : end_of(args.ends, group - 1);
    const int64_t end = end_of(args.ends, group);
    const auto* grad = static_cast<const T*>(args.grad) + output;
    const auto* x = static_cast<const T*>(args.x) + column;
    A sum = 0;
    for (int64_t row = begin + threadIdx.x; row < end; row += kWarp) {
      sum = multiply_add(widen(grad[row * args.grad_stride]), widen(x[row * args.x_stride]), sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0) {
      if (args.to_dtype == Dtype::kFloat64) {
        static_cast<double*>(args.to)[item] = sum;
      } else {
        store_one(static_cast<float>(sum), args.to, args.to_dtype, item);
      }
    }
  }
}

}  // namespace

void grouped_linear_launch(const GroupedProductArgs& args, Stream stream) {
  const LinearWeight& weight = args.weights.first;
  // Down the stored rows or along them.
  const bool along = args.weights.transposed == args.backward;
  const int64_t columns = along ? weight.rows : weight.columns;
  const int64_t inner = along ? weight.columns : weight.rows;
  const int64_t items = args.ends.rows * columns;
  for_dtype(args.dtype, [&](auto zero) {
    launch("grouped_linear", grouped_products<decltype(zero)>, blocks_for(items, kProductWarps),
           product_block(), 0, stream, args, Divisor(columns), inner, along ? weight.stride : 1,
           along ? 1 : weight.stride, items);
  });
}

void grouped_linear_backward_weight_launch(const GroupedGradientArgs& args, Stream stream) {
  const int64_t items = args.ends.count * args.grad_columns * args.x_columns;
  for_dtype(args.dtype, [&](auto zero) {
    launch("grouped_linear_backward_weight", grouped_gradients<decltype(zero)>,
           blocks_for(items, kProductWarps), product_block(), 0, stream, args,
           Divisor(args.x_columns), Divisor(args.grad_columns), items);
  });
}

}  // namespace fusewheel
