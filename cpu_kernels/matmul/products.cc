#include "products.h"

#include <algorithm>
#include <memory>

#include "matmul.h"
#include "parallel.h"
#include "prepare.h"

namespace fusewheel {

using FUSEWHEEL_ISA::kGrain;
using FUSEWHEEL_ISA::parallel_for;

namespace {

// Memory a thread keeps for its next call: fresh pages would cost more than a small product.
void* thread_scratch(int64_t bytes) {
  thread_local std::unique_ptr<char[]> memory;
  thread_local int64_t size = 0;
  constexpr int64_t kLine = 64;
  if (size < bytes + kLine) {
    memory.reset();
    memory.reset(new char[static_cast<size_t>(bytes + kLine)]);
    size = bytes + kLine;
  }
  void* start = memory.get();
  size_t space = static_cast<size_t>(size);
  return std::align(kLine, static_cast<size_t>(bytes), start, space);
}

bool is_wide(const Tensor& y) { return y.scalar_type() == ScalarType::Double; }

void run(MatmulArgs args) {
  if (args.m == 0 || args.n == 0) {
    return;
  }
  const MatmulPlan plan = FUSEWHEEL_SELECT(matmul_plan)(args);
  const auto tasks = FUSEWHEEL_SELECT(matmul_tasks);
  const int64_t work = args.n * args.m * args.k / plan.tasks;
  parallel_for(plan.tasks, 4 * kGrain / std::max<int64_t>(work, 1) + 1,
               [&](int64_t begin, int64_t end) {
                 tasks(args, begin, end, thread_scratch(plan.scratch_bytes));
               });
}

}  // namespace

bool is_fast_in_aten(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Double: return true;
    case ScalarType::BFloat16: return !choices().own_bfloat16;
    case ScalarType::Half: return !choices().own_float16;
    default: return !choices().own_float32;
  }
}

void matmul(const RowMatrix& x, const LinearWeight& weight, const std::optional<Tensor>& bias,
            Tensor& y, int64_t group_size) {
  RowMatrix a = widen(x, is_wide(y));
  const bool rounds = group_size > 0 && !is_wide(y);
  const bool integers = rounds && weight.columns > 0 &&
                        FUSEWHEEL_SELECT(has_integer_products)(weight);
  if (rounds && !integers) {
    a = round_to_int8(a, group_size);
  }
  std::optional<RowMatrix> offset;
  if (bias.has_value()) {
    offset = widen({*bias, 1, weight.rows, weight.rows}, is_wide(y));
  }
  MatmulArgs args{a.tensor.const_data_ptr(), a.stride, x.count, weight.rows, weight.columns, weight,
                  false, offset.has_value() ? offset->tensor.const_data_ptr() : nullptr,
                  y.mutable_data_ptr(), dtype_of(y), integers, {}};
  // One row of 4-bit codes is rounded by each thread.
  if (!integers || (x.count == 1 && weight.kind == WeightKind::kInt4)) {
    return run(args);
  }
  const RoundedMatrix rounded(a, weight);
  args.rounded = rounded.rows();
  run(args);
}

void matmul_transposed(const RowMatrix& grad, const LinearWeight& weight, Tensor& y) {
  const RowMatrix a = widen(grad, is_wide(y));
  run({a.tensor.const_data_ptr(), a.stride, grad.count, weight.columns, weight.rows, weight, true,
       nullptr, y.mutable_data_ptr(), dtype_of(y), false, {}});
}

void matmul_gradient(const RowMatrix& grad, const RowMatrix& x, Tensor& y, bool add,
                     const std::optional<Tensor>& memory) {
  const RowMatrix a = widen(grad, is_wide(y), true, memory);
  LinearWeight weight = {};
  weight.kind = WeightKind::kFloating;
  weight.dtype = dtype_of(x.tensor);
  weight.data = x.tensor.const_data_ptr();
  weight.rows = x.count;
  weight.columns = x.size;
  weight.stride = x.stride;
  run({a.tensor.const_data_ptr(), a.stride, grad.size, x.size, x.count, weight, true, nullptr,
       y.mutable_data_ptr(), dtype_of(y), false, {}, add});
}

}  // namespace fusewheel
