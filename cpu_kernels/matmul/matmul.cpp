// Products with a weight that is widened on the way: how the work divides, and the loops over it.

#include "matmul.h"

#include "integer.h"
#include "panel.h"
#include "rows.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

// Rows of a that use one packed block; their sums wait in scratch memory.
constexpr int64_t kBlockRows = 480;
// Columns of y whose panels are packed together.
constexpr int64_t kBlockColumns = kBytes == 64 ? 128 : 64;

bool is_few(const MatmulArgs& args) {
  return !args.transposed && args.m <= kFewRows && args.k > 0 &&
         args.rounded.codes == nullptr && args.dtype != Dtype::kFloat64;
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
  while (begin < end) {
    const int64_t row = begin / across * kBlockRows;
    const int64_t rows = args.m - row < kBlockRows ? args.m - row : kBlockRows;
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
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t row = unit / across * kBlockRows;
    const int64_t rows = args.m - row < kBlockRows ? args.m - row : kBlockRows;
    const int64_t column = unit % across * kUnit;
    const int64_t columns = args.n - column < kUnit ? args.n - column : kUnit;
    integer_block<Sums>(args, row, rows, column, columns, panels, sums, kUnit);
    finish<float>(args, sums, kUnit, row, rows, column, columns);
  }
}
#endif

template <typename A>
void widen_as(const WidenArgs& args, int64_t begin, int64_t end) {
  A* to = static_cast<A*>(args.to);
  if (!args.transposed) {
    for (int64_t row = begin; row < end; ++row) {
      widen_all(args.dtype, args.from, row * args.stride, args.columns, to + row * args.columns);
    }
    return;
  }
  // Columns [begin, end), in squares, so that both sides use whole cache lines.
  constexpr int64_t side = 16;
  A square[side][side];
  for (int64_t column = begin; column < end; column += side) {
    const int64_t width = end - column < side ? end - column : side;
    for (int64_t row = 0; row < args.rows; row += side) {
      const int64_t height = args.rows - row < side ? args.rows - row : side;
      for (int64_t i = 0; i < height; ++i) {
        widen_all(args.dtype, args.from, (row + i) * args.stride + column, width, square[i]);
      }
      for (int64_t j = 0; j < width; ++j) {
        for (int64_t i = 0; i < height; ++i) {
          to[(column + j) * args.rows + row + i] = square[i][j];
        }
      }
    }
  }
}

}  // namespace

MatmulPlan matmul_plan(const MatmulArgs& args) {
  const int64_t across = (args.n + kUnit - 1) / kUnit;
  if (is_few(args)) {
    return {across, few_scratch(args) * static_cast<int64_t>(sizeof(float))};
  }
  const int64_t rows = args.m < kBlockRows ? args.m : kBlockRows;
#if defined(__AVX2__)
  if (args.rounded.codes != nullptr) {
    return {across * ((args.m + kBlockRows - 1) / kBlockRows),
            static_cast<int64_t>(kCodePanels * sizeof(CodePanel) + sizeof(float) * rows * kUnit)};
  }
#endif
  const int64_t bytes = args.dtype == Dtype::kFloat64 ? sizeof(double) : sizeof(float);
  return {across * ((args.m + kBlockRows - 1) / kBlockRows),
          (kBlockColumns * kDepth + rows * kBlockColumns) * bytes};
}

void matmul_tasks(const MatmulArgs& args, int64_t begin, int64_t end, void* scratch) {
  if (args.dtype == Dtype::kFloat64) {
    return units<double>(args, begin, end, scratch);
  }
#if defined(__AVX2__)
  if (args.rounded.codes != nullptr) {
#if defined(__AVX512F__)
    if (has_vnni()) {
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

void widen_rows(const WidenArgs& args, int64_t begin, int64_t end) {
  if (args.wide) {
    widen_as<double>(args, begin, end);
  } else {
    widen_as<float>(args, begin, end);
  }
}

void round_rows(const RoundArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t k = 0; k < args.columns; k += args.group_size) {
      const float* from = args.from + row * args.stride + k;
      float* to = args.to + row * args.columns + k;
      const int64_t size = args.group_size;
      Vec<float> largest = {};
      for_each_vector<float>(size, [&](int64_t i, int64_t live) {
        const Vec<float> value = load(from + i, live);
        const Vec<float> magnitude = value < 0 ? -value : value;
        largest = magnitude > largest ? magnitude : largest;
      });
      float amax = 0;
      for (int lane = 0; lane < kLanes<float>; ++lane) {
        amax = largest[lane] > amax ? largest[lane] : amax;
      }
      // A group of zeros, or of numbers so small that they vanish beside any weight.
      const float inverse = 127 / amax > 3.4028235e38f ? 0 : 127 / amax;
      const float step = amax / 127;
      for_each_vector<float>(size, [&](int64_t i, int64_t live) {
        // Not by adding a large number: fused with the product, that would round other ties.
        Vec<float> code = load(from + i, live) * inverse;
        for (int lane = 0; lane < kLanes<float>; ++lane) {
          code[lane] = __builtin_nearbyintf(code[lane]);
        }
        store(to + i, code * step, live);
      });
    }
  }
}

#if defined(__AVX2__)

bool has_integer_products() { return true; }

void code_rows(const CodeArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t block = row * args.blocks;
    round_codes(args.from + row * args.stride, args.blocks, args.codes + block * kInt4Block,
                args.steps + block, args.sums + block);
  }
}

#else

bool has_integer_products() { return false; }

void code_rows(const CodeArgs&, int64_t, int64_t) {}

#endif

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include <memory>
#include <type_traits>

#include "../parallel.h"

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

// Rows in the accumulation type: themselves where they are, a copy otherwise.
Rows widen(const Rows& rows, bool wide, bool transposed = false,
           const std::optional<Tensor>& memory = std::nullopt) {
  const ScalarType type = wide ? ScalarType::Double : ScalarType::Float;
  if (!transposed && rows.tensor.scalar_type() == type) {
    return rows;
  }
  const int64_t sizes[] = {transposed ? rows.size : rows.count,
                           transposed ? rows.count : rows.size};
  const Tensor to = memory ? *memory : empty_contiguous({sizes, 2}, type, rows.tensor);
  const WidenArgs args{rows.tensor.const_data_ptr(), dtype_of(rows.tensor), rows.stride, rows.size,
                       transposed, rows.count, to.mutable_data_ptr(), wide};
  const auto all = FUSEWHEEL_SELECT(widen_rows);
  parallel_for(sizes[0], kGrain / std::max<int64_t>(sizes[1], 1) + 1,
               [&](int64_t begin, int64_t end) { all(args, begin, end); });
  return {to, sizes[0], sizes[1], sizes[1]};
}

Rows round(const Rows& rows, int64_t group_size) {
  const int64_t sizes[] = {rows.count, rows.size};
  Tensor to = empty_contiguous({sizes, 2}, ScalarType::Float, rows.tensor);
  const RoundArgs args{static_cast<const float*>(rows.tensor.const_data_ptr()), rows.stride,
                       rows.size, group_size, static_cast<float*>(to.mutable_data_ptr())};
  const auto all = FUSEWHEEL_SELECT(round_rows);
  parallel_for(rows.count, kGrain / std::max<int64_t>(rows.size, 1) + 1,
               [&](int64_t begin, int64_t end) { all(args, begin, end); });
  return {to, rows.count, rows.size, rows.size};
}

// Rounded rows and the memory that holds them.
struct Coded {
  Tensor codes;
  Tensor steps;
  Tensor sums;
  RoundedRows rows;

  explicit Coded(const Rows& from)
      : codes(empty(from, ScalarType::Char, 1)),
        steps(empty(from, ScalarType::Float, kInt4Block)),
        sums(empty(from, ScalarType::Float, kInt4Block)) {
    int8_t* to = static_cast<int8_t*>(codes.mutable_data_ptr());
    float* step = static_cast<float*>(steps.mutable_data_ptr());
    float* sum = static_cast<float*>(sums.mutable_data_ptr());
    rows = {to, step, sum, from.size / kInt4Block};
    const CodeArgs args{static_cast<const float*>(from.tensor.const_data_ptr()), from.stride,
                        rows.blocks, to, step, sum};
    const auto all = FUSEWHEEL_SELECT(code_rows);
    parallel_for(from.count, kGrain / std::max<int64_t>(from.size, 1) + 1,
                 [&](int64_t begin, int64_t end) { all(args, begin, end); });
  }

  static Tensor empty(const Rows& from, ScalarType type, int64_t block) {
    const int64_t sizes[] = {from.count, from.size / block};
    return empty_contiguous({sizes, 2}, type, from.tensor);
  }
};

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
    a = round(a, group_size);
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
