// Few rows of a: dot products along the rows of the weight, which is then read once and not packed.
#pragma once

#include "simd/transpose.h"
#include "again.h"
#include "one_row.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Up to this many rows of a count as few.
constexpr int64_t kFewRows = 16;
static_assert(kFewRows >= kMostDigitRows);
// Rows of a and rows of the weight in one register tile.
constexpr int kDotRows = 4;
constexpr int kDotColumns = kBytes == 64 ? 4 : 3;
// Steps of k at a time: the first-level cache holds so much of all rows of a. They are summed apart
// from those before, and fewer where fewer lanes share them: the longer a sum, the more it rounds.
constexpr int64_t kFewDepth = kBytes == 16 ? 128 : 512;

// Where rows of the weight come from: those that memory has are asked for while those before them
// are used.
enum class From { kMemory, kCache };

// A row of a adds to the first `columns` of its kUnit vectors in `lane_sums`.
template <int rows, int columns, typename W>
void dot_tile(From from, const float* a, int64_t a_stride, const W* w, int64_t w_stride,
              int64_t count, Vec<float>* lane_sums, bool first) {
  using A = float;
  Vec<A> sums[rows][columns];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < columns; ++j) {
      sums[r][j] = Vec<A>{};
    }
  }
  const auto step = [&](int64_t i, auto live) {
    Vec<A> weights[columns];
#pragma GCC unroll 4
    for (int j = 0; j < columns; ++j) {
      weights[j] = load_number(w + j * w_stride + i, live);
      if (from == From::kMemory && i % kLineNumbers<W> == 0) {
        __builtin_prefetch(w + (j + columns) * w_stride + i);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const Vec<A> factor = load(a + r * a_stride + i, live);
#pragma GCC unroll 4
      for (int j = 0; j < columns; ++j) {
        sums[r][j] += factor * weights[j];
      }
    }
  };
  int64_t i = 0;
  for (; i + kLanes<A> <= count; i += kLanes<A>) {
    step(i, kLanes<A>);
  }
  if (i < count) {
    step(i, count - i);
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < columns; ++j) {
      Vec<A>& total = lane_sums[r * kUnit + j];
      total = first ? sums[r][j] : total + sums[r][j];
    }
  }
}

// `columns` rows of the weight against `rows` of a.
template <int columns, typename W>
FUSEWHEEL_INLINE void dot_rows(From from, int64_t rows, const float* a, int64_t a_stride, const W* w,
                               int64_t w_stride, int64_t count, Vec<float>* sums, bool first) {
  for (; rows >= kDotRows; rows -= kDotRows) {
    dot_tile<kDotRows, columns>(from, a, a_stride, w, w_stride, count, sums, first);
    a += kDotRows * a_stride;
    sums += kDotRows * kUnit;
  }
  switch (rows) {
    case 3: return dot_tile<3, columns>(from, a, a_stride, w, w_stride, count, sums, first);
    case 2: return dot_tile<2, columns>(from, a, a_stride, w, w_stride, count, sums, first);
    case 1: return dot_tile<1, columns>(from, a, a_stride, w, w_stride, count, sums, first);
    default: return;
  }
}

template <int columns = kDotColumns, typename... Arguments>
FUSEWHEEL_INLINE void dot_columns(int64_t live, Arguments... arguments) {
  if constexpr (columns > 0) {
    if (live == columns) {
      return dot_rows<columns>(arguments...);
    }
    dot_columns<columns - 1>(live, arguments...);
  }
}

// Asks for the cache lines of elements [k, k + count) of a row of the weight.
FUSEWHEEL_INLINE void prefetch_row(const LinearWeight& weight, int64_t row, int64_t k,
                                   int64_t count) {
  if (weight.kind == WeightKind::kBlocks) {
    const BlockFormat& format = weight.blocks;
    return prefetch(weight.data, row * weight.stride + k / format.weights * format.bytes,
                    (count + format.weights - 1) / format.weights * format.bytes);
  }
  const int64_t eighths = weight.kind == WeightKind::kInt4   ? 4
                          : weight.kind == WeightKind::kInt8 ? 8
                          : weight.dtype == Dtype::kFloat32  ? 32
                                                             : 16;
  const int64_t stride = weight.kind == WeightKind::kFloating ? weight.stride * eighths / 8
                                                              : weight.stride;
  prefetch(weight.data, row * stride + k * eighths / 8, count * eighths / 8);
}

// Numbers of the weight are widened in the registers of each tile. The first tile brings them from
// memory.
template <typename W>
FUSEWHEEL_INLINE void few_in_place(const MatmulArgs& args, int64_t row, int64_t live, int64_t k,
                                   int64_t count, Vec<float>* out) {
  const float* a = static_cast<const float*>(args.a) + k;
  const LinearWeight& weight = args.weight;
  const W* w = static_cast<const W*>(weight.data) + row * weight.stride + k;
  const int64_t first = args.m < kDotRows ? args.m : kDotRows;
  dot_columns(live, From::kMemory, first, a, args.a_stride, w, weight.stride, count, out, k == 0);
  dot_columns(live, From::kCache, args.m - first, a + first * args.a_stride, args.a_stride, w,
              weight.stride, count, out + first * kUnit, k == 0);
}

// Whether the weight is numbers, or codes with one scale a row, that are better widened by each tile
// than once for all. Beyond one tile it was timed with AVX2 only; with AVX-512, widening takes half as
// many instructions as the products of a tile.
FUSEWHEEL_INLINE bool is_in_place(const MatmulArgs& args) {
  const LinearWeight& weight = args.weight;
  const bool pays = args.m <= kDotRows || kBytes == 32;
  switch (weight.kind) {
    case WeightKind::kFloating: return pays || weight.dtype == Dtype::kFloat32;
    case WeightKind::kInt8: return pays && weight.groups == 1;
    default: return false;
  }
}

FUSEWHEEL_INLINE void few_in_place(const MatmulArgs& args, int64_t row, int64_t live, int64_t k,
                                   int64_t count, Vec<float>* out) {
  if (args.weight.kind == WeightKind::kInt8) {
    return few_in_place<int8_t>(args, row, live, k, count, out);
  }
  for_dtype(args.weight.dtype, [&](auto zero) {
    using W = decltype(zero);
    if constexpr (sizeof(Accumulate<W>) == sizeof(float)) {
      few_in_place<W>(args, row, live, k, count, out);
    }
  });
}

// Sums of codes times their scales.
FUSEWHEEL_INLINE void scale_rows(const MatmulArgs& args, int64_t begin, int64_t columns,
                                 Vec<float>* sums) {
  float scales[kUnit];
  widen_all(args.weight.scale_dtype, args.weight.scales, begin, columns, scales);
  for (int64_t row = 0; row < args.m; ++row) {
    for (int64_t j = 0; j < columns; ++j) {
      sums[row * kUnit + j] *= scales[j];
    }
  }
}

// A few rows of the weight at a time serve all rows of a. Where that is not in place they are widened
// into `decoded`, which the cache holds.
FUSEWHEEL_INLINE void few_sums(const MatmulArgs& args, bool in_place, int64_t begin,
                               int64_t columns, float* decoded, Vec<float>* sums) {
  const float* a = static_cast<const float*>(args.a);
  const LinearWeight& weight = args.weight;
  for (int64_t k = 0; k < args.k; k += kFewDepth) {
    const int64_t count = args.k - k < kFewDepth ? args.k - k : kFewDepth;
    for (int64_t j = 0; j < columns; j += kDotColumns) {
      const int64_t live = columns - j < kDotColumns ? columns - j : kDotColumns;
      const int64_t row = begin + j;
      Vec<float>* out = sums + j;
      if (in_place) {
        few_in_place(args, row, live, k, count, out);
        continue;
      }
      for (int64_t c = 0; c < live; ++c) {
        decode(weight, row + c, k, count, decoded + c * kFewDepth);
      }
      for (int64_t c = 0; c < live; ++c) {
        prefetch_row(weight, row + kDotColumns + c, k, count);
      }
      dot_columns(live, From::kCache, args.m, a + k, args.a_stride,
                  static_cast<const float*>(decoded), kFewDepth, count, out, k == 0);
    }
  }
  if (in_place && weight.kind == WeightKind::kInt8) {
    scale_rows(args, begin, columns, sums);
  }
}

// Memory of a thread, in floats: sums by lanes, decoded rows, what one row wants.
constexpr int64_t kLaneSums = kFewRows * kUnit * kLanes<float>;
constexpr int64_t kDecoded = kDotColumns * kFewDepth;

FUSEWHEEL_INLINE int64_t few_scratch(const MatmulArgs& args) {
  OneRow one = {};
  const int64_t rows = has_digit_rows(args) || has_exact_rows(args) ? args.m : 1;
  return kLaneSums + kDecoded + one_row_scratch(args.weight, rows, nullptr, one);
}

}  // namespace fusewheel::FUSEWHEEL_ISA
