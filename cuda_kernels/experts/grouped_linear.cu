// Products of rows that are sorted by group, each with its group's weight.

#include "grouped_linear.h"

#include "grouped_products.h"

namespace fusewheel {
namespace {

// Rows of a lane, one after another: of such a chain only the first product is rounded by itself. Groups may
// have few rows, and with one row a lane every product would be.
constexpr int kChain = 4;

template <typename T>
__global__ void __launch_bounds__(kWarp* kProductWarps)
    grouped_gradients(const __grid_constant__ GroupedGradientArgs args, Divisor columns, Divisor rows,
              int64_t items) {
  using A = Accumulate<T>;
  for_items(items, columns, [&](int64_t item, int64_t weight_row, int64_t column) {
    const auto group = static_cast<int64_t>(rows.divide(weight_row));
    const int64_t output = weight_row - group * static_cast<int64_t>(rows.divisor);
    const int64_t begin = group == 0 ? 0 : end_of(args.ends, group - 1);
    const int64_t end = end_of(args.ends, group);
    const auto* grad = static_cast<const T*>(args.grad) + output;
    const auto* x = static_cast<const T*>(args.x) + column;
    A sum = 0;
    for (int64_t first = begin + threadIdx.x * kChain; first < end; first += kWarp * kChain) {
#pragma unroll
      for (int i = 0; i < kChain; ++i) {
        const int64_t row = first + i;
        if (row < end) {
          sum = multiply_add(widen(grad[row * args.grad_stride]), widen(x[row * args.x_stride]), sum);
        }
      }
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0) {
      if (args.to_dtype == Dtype::kFloat64) {
        static_cast<double*>(args.to)[item] = sum;
      } else {
        store_one(static_cast<float>(sum), args.to, args.to_dtype, item);
      }
    }
  });
}

}  // namespace

void grouped_linear_launch(const GroupedProductArgs& args, Stream stream) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const LinearWeight& stored = args.weights.first;
    const int64_t columns =
        args.weights.transposed == args.backward ? stored.rows : stored.columns;
    const int64_t items = args.ends.rows * columns;
    const auto run = [&](const auto& weight) {
      launch("grouped_linear", grouped_products<T, std::decay_t<decltype(weight)>>,
             blocks_for(items, kProductWarps), product_block(), 0, stream, args, weight,
             InputRows<T>(args.x, args.x_stride), Divisor(columns), items);
    };
    if (args.backward) {
      run(AnyRows<Accumulate<T>>(args.weights, true));
    } else {
      for_floating_rows<T>(args.weights, args.dtype, run);
    }
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
