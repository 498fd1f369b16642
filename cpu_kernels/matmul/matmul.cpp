// Products with a weight that is widened on the way: how the work divides, and the loops over it.

#include "matmul.h"

#include <cstddef>

#include "simd/stream.h"
#include "bfloat16.h"
#include "few_rows.h"
#include "int8.h"
#include "integer_amx.h"
#include "next_rows.h"
#include "panel.h"
#include "row_lanes.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

// Rows of a that use one packed block, at most; their sums wait in scratch memory.
constexpr int64_t kBlockRows = 480;
static_assert(kBlockRows % kTileRows == 0);
// In bfloat16 packing takes twice as long beside the product.
constexpr int64_t kBlockBFloat16Rows = 512;
// What matrix instructions multiply at a time.
constexpr int64_t kBFloat16Rows = 32;
// Columns of y whose panels are packed together.
constexpr int64_t kBlockColumns = kBytes == 64 ? 128 : 64;

bool is_few(const MatmulArgs& args) {
  return !args.transposed && args.m <= kFewRows && args.k > 0 && !args.bfloat16 &&
         args.rounded.codes == nullptr && args.dtype != Dtype::kFloat64;
}

int64_t divide_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// How many of `count` go into each of as few blocks as there can be, of at most `most`. They are alike:
// a small rest would take longer than its part, and a thread that got it would wait for the others.
int64_t alike(int64_t count, int64_t most) { return divide_up(count, divide_up(count, most)); }

int64_t block_rows(const MatmulArgs& args) {
  const int64_t unit = args.bfloat16 ? kBFloat16Rows : kTileRows;
  const int64_t most = args.bfloat16 ? kBlockBFloat16Rows : kBlockRows;
  return alike(divide_up(args.m, unit), most / unit) * unit;
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
          if (args.past_caches && live == kLanes<A>) {
            return stream(y + j, value);
          }
          store(y + j, args.add ? value + load(y + j, live) : value, live);
        });
      }
    }
  });
  if (args.past_caches) {
    end_of_stream();
  }
}

// All rows of a times a packed panel.
template <typename A, bool in_tiles>
void panel_rows(const A* a, int64_t a_stride, int64_t rows, const A* panel, int64_t depth, A* c,
                bool accumulate, NextRows& next) {
  const auto ask = [&](int64_t) FUSEWHEEL_INLINED { next.ask(); };
  int64_t i = 0;
  for (; i + kTileRows <= rows && !next.is_done(); i += kTileRows) {
    panel_tile<A, kTileRows, in_tiles>(a + i * a_stride, a_stride, panel, depth,
                                       c + i * kBlockColumns, kBlockColumns, accumulate, ask);
  }
  for (; i + kTileRows <= rows; i += kTileRows) {
    panel_tile<A, kTileRows, in_tiles>(a + i * a_stride, a_stride, panel, depth,
                                       c + i * kBlockColumns, kBlockColumns, accumulate);
  }
  short_tile<A, in_tiles>(rows - i, a + i * a_stride, a_stride, panel, depth, c + i * kBlockColumns,
                          kBlockColumns, accumulate, ask);
}

// Whether columns of the weight are packed for several panels at a time. One panel stays in the first-level
// cache, but each of its steps is a row of the weight: such rows are not asked for ahead, nor are codes
// decoded piece by piece. With AVX-512, where a panel is larger than that cache, it was not tried.
template <typename A>
bool packs_together(const MatmulArgs& args) {
  return args.transposed &&
         (kBytes != 32 || asks_for_rows(args) || !is_widened<A>(args.weight));
}

// Columns [column, column + columns) of y for rows [row, row + rows) of a, through packed panels.
template <typename A>
void block(const MatmulArgs& args, int64_t row, int64_t rows, int64_t column, int64_t columns,
           void* scratch) {
  constexpr int width = kPanel<A>;
  const int64_t panels = divide_up(columns, width);
  A* packed = static_cast<A*>(scratch);
  A* sums = packed + kBlockColumns * kDepth;
  const A* a = static_cast<const A*>(args.a) + row * args.a_stride;
  const int64_t most = steps_together(args);
  const bool together = packs_together<A>(args);
  for (int64_t k = 0; k < args.k; k += most) {
    const int64_t depth = args.k - k < most ? args.k - k : most;
    NextRows next;
    if (together) {
      pack_columns(args.weight, column, columns, panels, k, depth, packed);
      next = next_steps(args, column, columns, k, depth);
    }
    for (int64_t p = 0; p < panels; ++p) {
      A* panel = together ? packed + p * kDepth * width : packed;
      const int64_t first = column + p * width;
      const int64_t live = columns - p * width;
      if (!args.transposed) {
        pack_rows(args.weight, first, live, k, depth, panel);
        next = next_rows(args, width, column, first, column + columns, k, depth);
      } else if (!together) {
        pack_columns(args.weight, first, live < width ? live : width, 1, k, depth, panel);
      }
      if (args.in_tiles) {
        panel_rows<A, true>(a + k * kTileRows, args.a_stride, rows, panel, depth, sums + p * width,
                            k > 0, next);
      } else {
        panel_rows<A, false>(a + k, args.a_stride, rows, panel, depth, sums + p * width, k > 0,
                             next);
      }
    }
  }
  if (args.k == 0) {
    __builtin_memset(sums, 0, static_cast<size_t>(rows * kBlockColumns) * sizeof(A));
  }
  finish<A>(args, sums, kBlockColumns, row, rows, column, columns);
}

#if defined(__AVX512F__)
void block_of_bfloat16(const MatmulArgs& args, int64_t row, int64_t rows, int64_t column,
                       int64_t columns, void* scratch) {
  BFloat16* packed = static_cast<BFloat16*>(scratch);
  float* sums = reinterpret_cast<float*>(packed + kBlockColumns * kDepth);
  bfloat16_block(args, row, rows, column, columns, packed, sums, kBlockColumns);
  finish<float>(args, sums, kBlockColumns, row, rows, column, columns);
}
#endif

// Units [begin, end), those of one block of rows after those of the one before.
template <typename Block>
void units(const MatmulArgs& args, int64_t begin, int64_t end, void* scratch, Block block) {
  const int64_t across = divide_up(args.n, kUnit);
  const int64_t together = block_rows(args);
  while (begin < end) {
    const int64_t row = begin / across * together;
    const int64_t rows = args.m - row < together ? args.m - row : together;
    const int64_t column = begin % across * kUnit;
    const int64_t left = across - begin % across < end - begin ? across - begin % across : end - begin;
    const int64_t taken = alike(left, kBlockColumns / kUnit);
    const int64_t columns =
        args.n - column < taken * kUnit ? args.n - column : taken * kUnit;
    block(args, row, rows, column, columns, scratch);
    begin += taken;
  }
}

#if defined(__AVX2__)
// Units [begin, end) of rounded activations: sums(row, rows, column, columns) gives those of a unit.
template <typename Sums>
void rounded_units(const MatmulArgs& args, int64_t begin, int64_t end, Sums sums_of_unit) {
  const int64_t across = divide_up(args.n, kUnit);
  const int64_t together = block_rows(args);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t row = unit / across * together;
    const int64_t rows = args.m - row < together ? args.m - row : together;
    const int64_t column = unit % across * kUnit;
    const int64_t columns = args.n - column < kUnit ? args.n - column : kUnit;
    const float* sums = sums_of_unit(row, rows, column, columns);
    finish<float>(args, sums, kUnit, row, rows, column, columns);
  }
}

template <typename Multiply>
void int4_units(const MatmulArgs& args, int64_t begin, int64_t end, void* scratch,
                Multiply multiply) {
  CodePanel* panels = static_cast<CodePanel*>(scratch);
  float* sums = reinterpret_cast<float*>(panels + kCodePanels);
  rounded_units(args, begin, end, [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
    integer_block(args, row, rows, column, columns, panels, sums, kUnit, multiply);
    if (!all_finite(sums, rows, columns, kUnit)) {
      multiply_again(args, row, rows, column, columns, sums, kUnit);
    }
    return sums;
  });
}

void int8_units(const MatmulArgs& args, int64_t begin, int64_t end, void* memory) {
  const Int8Scratch scratch = int8_scratch(memory, block_rows(args));
  rounded_units(args, begin, end, [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
    int8_unit(args, row, rows, column, columns, scratch);
    if (!all_finite(scratch.sums, rows, columns, kUnit)) {
      multiply_again(args, row, rows, column, columns, scratch.sums, kUnit);
    }
    return scratch.sums;
  });
}
#endif

}  // namespace

MatmulPlan matmul_plan(const MatmulArgs& args) {
  const int64_t across = divide_up(args.n, kUnit);
  if (has_row_lanes(args)) {
    return {across, kLaneScratch};
  }
  if (is_few(args)) {
    return {across, few_scratch(args) * static_cast<int64_t>(sizeof(float))};
  }
  const int64_t rows = block_rows(args);
  const int64_t tasks = across * divide_up(args.m, rows);
#if defined(__AVX2__)
  if (args.rounded.codes != nullptr) {
    if (args.weight.kind == WeightKind::kInt8) {
      return {tasks, int8_scratch_bytes(rows)};
    }
    return {tasks,
            static_cast<int64_t>(kCodePanels * sizeof(CodePanel) + sizeof(float) * rows * kUnit)};
  }
#endif
  const int64_t bytes = args.dtype == Dtype::kFloat64 ? sizeof(double) : sizeof(float);
  const int64_t packed = args.bfloat16 ? sizeof(BFloat16) : bytes;
  return {tasks, kBlockColumns * kDepth * packed + rows * kBlockColumns * bytes};
}

void matmul_tasks(const MatmulArgs& args, int64_t begin, int64_t end, void* scratch) {
  if (args.dtype == Dtype::kFloat64) {
    return units(args, begin, end, scratch, block<double>);
  }
  if (has_row_lanes(args)) {
    const int64_t last = end * kUnit < args.n ? end * kUnit : args.n;
    return row_lanes(args, begin * kUnit, last, static_cast<float*>(scratch),
                           [&](const float* sums, int64_t column, int64_t columns) {
                             finish<float>(args, sums, kUnit, 0, args.m, column, columns);
                           });
  }
#if defined(__AVX2__)
  if (args.rounded.codes != nullptr) {
    if (args.weight.kind == WeightKind::kInt8) {
      return int8_units(args, begin, end, scratch);
    }
#if defined(__AVX512F__)
    if (uses_int4_amx(args)) {
      return int4_units(args, begin, end, scratch, amx_code_rows);
    }
#endif
    return int4_units(args, begin, end, scratch,
                      choices().vnni ? code_rows<LongSums> : code_rows<ShortSums>);
  }
#endif
#if defined(__AVX512F__)
  if (args.bfloat16) {
    return units(args, begin, end, scratch, block_of_bfloat16);
  }
#endif
  if (!is_few(args)) {
    return units(args, begin, end, scratch, block<float>);
  }
  const int64_t last = end * kUnit < args.n ? end * kUnit : args.n;
  few_rows(args, begin * kUnit, last, static_cast<float*>(scratch),
           [&](const float* sums, int64_t column, int64_t columns) {
             finish<float>(args, sums, kUnit, 0, args.m, column, columns);
           });
}

}  // namespace fusewheel::FUSEWHEEL_ISA
