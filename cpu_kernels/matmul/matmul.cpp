// Products with a weight that is widened on the way: how the work divides, and the loops over it.

#include "matmul.h"

#include "integer.h"
#include "panel.h"
#include "rows.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

// Rows of a that use one packed block, at most; their sums wait in scratch memory.
constexpr int64_t kBlockRows = 480;
static_assert(kBlockRows % kTileRows == 0);
// Columns of y whose panels are packed together.
constexpr int64_t kBlockColumns = kBytes == 64 ? 128 : 64;

bool is_few(const MatmulArgs& args) {
  return !args.transposed && args.m <= kFewRows && args.k > 0 &&
         args.rounded.codes == nullptr && args.dtype != Dtype::kFloat64;
}

// Rows in each of as few blocks as there can be. They are alike: a thread that got only what is left
// over would wait for the others.
int64_t block_rows(int64_t m) {
  const int64_t blocks = (m + kBlockRows - 1) / kBlockRows;
  const int64_t tiles = (m + blocks * kTileRows - 1) / (blocks * kTileRows);
  return tiles * kTileRows;
}

// Adds the bias to sums and rounds them to y.
template <typename A>
void finish(const MatmulArgs& args, const A* sums, int64_t stride, int64_t row, int64_t rows,
            int64_t column, int64_t columns) {
  const A* bias = static_cast<const A*>(args.bias);
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(Accumulate<T>) == sizeof(A)) {
      for (int64_t i = 0; i < rows; ++i) {
        T* y = static_cast<T*>(args.y) + (row + i) * args.n + column;
        for_each_vector<A>(columns, [&](int64_t j, int64_t live) {
          Vec<A> value = load(sums + i * stride + j, live);
          if (bias != nullptr) {
            value += load(bias + column + j, live);
          }
          store(y + j, args.add ? value + load(y + j, live) : value, live);
        });
      }
    }
  });
}

// Columns [column, column + columns) of y for rows [row, row + rows) of a, through packed panels.
template <typename A>
void block(const MatmulArgs& args, int64_t row, int64_t rows, int64_t column, int64_t columns,
           A* scratch) {
  constexpr int width = kPanel<A>;
  const int64_t panels = (columns + width - 1) / width;
  A* packed = scratch;
  A* sums = scratch + kBlockColumns * kDepth;
  const A* a = static_cast<const A*>(args.a) + row * args.a_stride;
  for (int64_t k = 0; k < args.k; k += kDepth) {
    const int64_t depth = args.k - k < kDepth ? args.k - k : kDepth;
    if (args.transposed) {
      pack_columns(args.weight, column, columns, panels, k, depth, packed);
    }
    for (int64_t p = 0; p < panels; ++p) {
      A* panel = packed + p * kDepth * width;
      if (!args.transposed) {
        pack_rows(args.weight, column + p * width, columns - p * width, k, depth, panel);
      }
      A* c = sums + p * width;
      int64_t i = 0;
      for (; i + kTileRows <= rows; i += kTileRows) {
        tile<A, kTileRows>(a + i * args.a_stride + k, args.a_stride, panel, depth,
                           c + i * kBlockColumns, kBlockColumns, k > 0);
      }
      short_tile<A>(rows - i, a + i * args.a_stride + k, args.a_stride, panel, depth,
                    c + i * kBlockColumns, kBlockColumns, k > 0);
    }
  }
  if (args.k == 0) {
    __builtin_memset(sums, 0, static_cast<size_t>(rows * kBlockColumns) * sizeof(A));
  }
  finish<A>(args, sums, kBlockColumns, row, rows, column, columns);
}

// Units [begin, end), those of one block of rows after those of the one before.
template <typename A>
void units(const MatmulArgs& args, int64_t begin, int64_t end, void* scratch) {
  const int64_t across = (args.n + kUnit - 1) / kUnit;
  const int64_t together = block_rows(args.m);
  while (begin < end) {
    const int64_t row = begin / across * together;
    const int64_t rows = args.m - row < together ? args.m - row : together;
    const int64_t column = begin % across * kUnit;
    int64_t taken = across - begin % across;
    taken = taken < end - begin ? taken : end - begin;
    taken = taken < kBlockColumns / kUnit ? taken : kBlockColumns / kUnit;
    const int64_t columns =
        args.n - column < taken * kUnit ? args.n - column : taken * kUnit;
    block<A>(args, row, rows, column, columns, static_cast<A*>(scratch));
    begin += taken;
  }
}

#if defined(__AVX2__)
// Units [begin, end) of rounded activations.
template <typename Sums>
void integer_units(const MatmulArgs& args, int64_t begin, int64_t end, void* scratch) {
  CodePanel* panels = static_cast<CodePanel*>(scratch);
  float* sums = reinterpret_cast<float*>(panels + kCodePanels);
  const int64_t across = (args.n + kUnit - 1) / kUnit;
  const int64_t together = block_rows(args.m);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t row = unit / across * together;
    const int64_t rows = args.m - row < together ? args.m - row : together;
    const int64_t column = unit % across * kUnit;
    const int64_t columns = args.n - column < kUnit ? args.n - column : kUnit;
    integer_block<Sums>(args, row, rows, column, columns, panels, sums, kUnit);
    finish<float>(args, sums, kUnit, row, rows, column, columns);
  }
}
#endif

}  // namespace

MatmulPlan matmul_plan(const MatmulArgs& args) {
  const int64_t across = (args.n + kUnit - 1) / kUnit;
  if (is_few(args)) {
    return {across, few_scratch(args) * static_cast<int64_t>(sizeof(float))};
  }
  const int64_t rows = block_rows(args.m);
  const int64_t tasks = across * ((args.m + rows - 1) / rows);
#if defined(__AVX2__)
  if (args.rounded.codes != nullptr) {
    return {tasks,
            static_cast<int64_t>(kCodePanels * sizeof(CodePanel) + sizeof(float) * rows * kUnit)};
  }
#endif
  const int64_t bytes = args.dtype == Dtype::kFloat64 ? sizeof(double) : sizeof(float);
  return {tasks, (kBlockColumns * kDepth + rows * kBlockColumns) * bytes};
}

void matmul_tasks(const MatmulArgs& args, int64_t begin, int64_t end, void* scratch) {
  if (args.dtype == Dtype::kFloat64) {
    return units<double>(args, begin, end, scratch);
  }
#if defined(__AVX2__)
  if (args.rounded.codes != nullptr) {
#if defined(__AVX512F__)
    if (choices().vnni) {
      return integer_units<LongSums>(args, begin, end, scratch);
    }
#endif
    return integer_units<ShortSums>(args, begin, end, scratch);
  }
#endif
  if (!is_few(args)) {
    return units<float>(args, begin, end, scratch);
  }
  const int64_t last = end * kUnit < args.n ? end * kUnit : args.n;
  few_rows(args, begin * kUnit, last, static_cast<float*>(scratch),
           [&](const float* sums, int64_t column, int64_t columns) {
             finish<float>(args, sums, kUnit, 0, args.m, column, columns);
           });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include <algorithm>
#include <memory>

#include "parallel.h"

namespace fusewheel {
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

void matmul(const Rows& x, const LinearWeight& weight, const std::optional<Tensor>& bias, Tensor& y,
            int64_t group_size) {
  Rows a = widen(x, is_wide(y));
  const bool rounds = group_size > 0 && !is_wide(y);
  const bool integers = rounds && weight.kind == WeightKind::kInt4 && weight.columns > 0 &&
                        FUSEWHEEL_SELECT(has_integer_products)();
  if (rounds && !integers) {
    a = round_to_int8(a, group_size);
  }
  std::optional<Rows> offset;
  if (bias.has_value()) {
    offset = widen({*bias, 1, weight.rows, weight.rows}, is_wide(y));
  }
  MatmulArgs args{a.tensor.const_data_ptr(), a.stride, x.count, weight.rows, weight.columns, weight,
                  false, offset.has_value() ? offset->tensor.const_data_ptr() : nullptr,
                  y.mutable_data_ptr(), dtype_of(y), integers, {}};
  if (!integers || x.count == 1) {
    return run(args);
  }
  const Coded coded(a);
  args.rounded = coded.rows;
  run(args);
}

void matmul_transposed(const Rows& grad, const LinearWeight& weight, Tensor& y) {
  const Rows a = widen(grad, is_wide(y));
  run({a.tensor.const_data_ptr(), a.stride, grad.count, weight.columns, weight.rows, weight, true,
       nullptr, y.mutable_data_ptr(), dtype_of(y), false, {}});
}

void matmul_gradient(const Rows& grad, const Rows& x, Tensor& y, bool add,
                     const std::optional<Tensor>& memory) {
  const Rows a = widen(grad, is_wide(y), true, memory);
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

#endif  // FUSEWHEEL_GLUE
