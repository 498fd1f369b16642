// Cross entropy of x @ weight^T + bias and a row's class, and the gradients of all three

#include <fusewheel/loss/linear_cross_entropy_args.h>

#include "parallel.h"
#include "simd/vec.h"
#include "sum_rows_args.h"

namespace fusewheel::FUSEWHEEL_ISA {

void add_to_sum_range(const AddToSumArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulate<T>;
    const auto* from = static_cast<const T*>(args.from) + begin;
    auto* sum = static_cast<A*>(args.sum) + begin;
    for_each_vector<A>(end - begin, [&](int64_t i, int64_t live) {
      const Vec<A> value = load(from + i, live);
      store(sum + i, args.first ? value : load(sum + i, live) + value, live);
    });
  });
}

// For columns [begin, end).
void sum_rows_columns(const SumRowsArgs& args, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 64;  // rows that are added up before their sum is: it rounds less
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulate<T>;
    const auto* from = static_cast<const T*>(args.from) + begin;
    auto* sum = static_cast<A*>(args.sum) + begin;
    for (int64_t row = 0; row < args.rows; row += kBlock) {
      const int64_t last = row + kBlock < args.rows ? row + kBlock : args.rows;
      for_each_vector<A>(end - begin, [&](int64_t i, int64_t live) {
        Vec<A> total = {};
        for (int64_t k = row; k < last; ++k) {
          total += load(from + k * args.columns + i, live);
        }
        store(sum + i, args.first && row == 0 ? total : load(sum + i, live) + total, live);
      });
    }
  });
}

void add_to_sum_launch(const AddToSumArgs& args) {
  parallel_rows(add_to_sum_range, args, args.count, 1);
}

void sum_rows_launch(const SumRowsArgs& args) {
  parallel_columns(sum_rows_columns, args, args.columns, args.rows);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(add_to_sum_launch, AddToSumArgs);
FUSEWHEEL_LAUNCHER(sum_rows_launch, SumRowsArgs);
