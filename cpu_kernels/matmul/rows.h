// Few rows of a: dot products along the rows of the weight, which is then read once and not packed.
#pragma once

#include "codes.h"
#include "matmul.h"

namespace fusewheel::FUSEWHEEL_ISA {

// A task is this many columns of y: a whole number of panels, of tiles and of 4-bit blocks.
constexpr int64_t kUnit = 32;
// Up to this many rows of a count as few.
constexpr int64_t kFewRows = 16;
// Rows of a and rows of the weight in one register tile; with one row of a, more of the weight.
constexpr int kDotRows = 4;
constexpr int kDotColumns = kBytes == 64 ? 4 : 2;
constexpr int kDotWide = 8;

// The sums of one unit wait here for bias and rounding.
using UnitSums = float[kFewRows][kUnit];

template <int rows, int columns, typename W>
void dot_tile(const float* a, int64_t a_stride, const W* w, int64_t w_stride, int64_t count,
              float (*out)[kUnit]) {
  using A = float;
  Vec<A> sums[rows][columns] = {};
  const auto step = [&](int64_t i, auto live) {
    Vec<A> weights[columns];
#pragma GCC unroll 8
    for (int j = 0; j < columns; ++j) {
      weights[j] = load(w + j * w_stride + i, live);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const Vec<A> factor = load(a + r * a_stride + i, live);
#pragma GCC unroll 8
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
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < columns; ++j) {
      out[r][j] = sum<A>(sums[r][j]);
    }
  }
}

// `columns` rows of the weight against up to kDotRows rows of a.
template <int columns, typename W>
FUSEWHEEL_INLINE void dot_rows(int64_t rows, const float* a, int64_t a_stride, const W* w,
                               int64_t w_stride, int64_t count, float (*out)[kUnit]) {
  switch (rows) {
    case 1: return dot_tile<1, columns>(a, a_stride, w, w_stride, count, out);
    case 2: return dot_tile<2, columns>(a, a_stride, w, w_stride, count, out);
    case 3: return dot_tile<3, columns>(a, a_stride, w, w_stride, count, out);
    default: return dot_tile<kDotRows, columns>(a, a_stride, w, w_stride, count, out);
  }
}

// Floating weights are widened in the registers of the tile.
template <typename W>
void few_floating(const MatmulArgs& args, int64_t begin, int64_t columns, UnitSums sums) {
  const float* a = static_cast<const float*>(args.a);
  const int64_t stride = args.weight.stride;
  const W* w = static_cast<const W*>(args.weight.data) + begin * stride;
  int64_t j = 0;
  if (args.m == 1) {
    for (; j + kDotWide <= columns; j += kDotWide) {
      dot_tile<1, kDotWide>(a, 0, w + j * stride, stride, args.k, (float(*)[kUnit])(sums[0] + j));
    }
  }
  for (; j + kDotColumns <= columns; j += kDotColumns) {
    dot_rows<kDotColumns>(args.m, a, args.a_stride, w + j * stride, stride, args.k,
                          (float(*)[kUnit])(sums[0] + j));
  }
  for (; j < columns; ++j) {
    dot_rows<1>(args.m, a, args.a_stride, w + j * stride, stride, args.k,
                (float(*)[kUnit])(sums[0] + j));
  }
}

// Other weights, and more rows than one tile has: a few rows of the weight are decoded into
// `decoded`, which the cache holds, and serve all rows of a.
FUSEWHEEL_INLINE void few_decoded(const MatmulArgs& args, int64_t begin, int64_t columns,
                                  float* decoded, UnitSums sums) {
  const float* a = static_cast<const float*>(args.a);
  for (int64_t j = 0; j < columns; j += kDotColumns) {
    const int64_t live = columns - j < kDotColumns ? columns - j : kDotColumns;
    for (int64_t c = 0; c < live; ++c) {
      for (int64_t k = 0; k < args.k; k += kStretch) {
        const int64_t count = args.k - k < kStretch ? args.k - k : kStretch;
        decode(args.weight, begin + j + c, k, count, decoded + c * args.k + k);
      }
    }
    for (int64_t i = 0; i < args.m; i += kDotRows) {
      const int64_t rows = args.m - i < kDotRows ? args.m - i : kDotRows;
      const float* from = a + i * args.a_stride;
      if (live == kDotColumns) {
        dot_rows<kDotColumns>(rows, from, args.a_stride, decoded, args.k, args.k,
                              (float(*)[kUnit])(sums[i] + j));
        continue;
      }
      for (int64_t c = 0; c < live; ++c) {
        dot_rows<1>(rows, from, args.a_stride, decoded + c * args.k, args.k, args.k,
                    (float(*)[kUnit])(sums[i] + j + c));
      }
    }
  }
}

// Scratch memory: decoded rows of the weight, or what dot_codes wants.
FUSEWHEEL_INLINE int64_t few_scratch(const MatmulArgs& args) {
  const int64_t decoded = kDotColumns * args.k;
  const int64_t codes = dot_codes_scratch(args.weight, kUnit);
  return (decoded > codes ? decoded : codes) * static_cast<int64_t>(sizeof(float));
}

// Columns [begin, end) of y, a unit at a time; finish(sums, column, columns) rounds and stores.
template <typename Finish>
FUSEWHEEL_INLINE void few_rows(const MatmulArgs& args, int64_t begin, int64_t end, float* scratch,
                               Finish finish) {
  const LinearWeight& weight = args.weight;
  const float* a = static_cast<const float*>(args.a);
  float* group_sums = scratch;
  float* prepared = group_sums + weight.groups;
  if (args.m == 1 && weight.kind == WeightKind::kInt4) {
    prepare_int4(weight, a, group_sums, prepared);
  }
  for (int64_t column = begin; column < end; column += kUnit) {
    const int64_t columns = end - column < kUnit ? end - column : kUnit;
    UnitSums sums;
    if (args.m == 1 && weight.kind != WeightKind::kFloating) {
      dot_codes(weight, column, columns, a, group_sums, prepared, prepared + args.k, sums[0]);
    } else if (args.m <= kDotRows && weight.kind == WeightKind::kFloating) {
      for_dtype(weight.dtype, [&](auto zero) {
        using W = decltype(zero);
        if constexpr (sizeof(Accumulate<W>) == sizeof(float)) {
          few_floating<W>(args, column, columns, sums);
        }
      });
    } else {
      few_decoded(args, column, columns, scratch, sums);
    }
    finish(&sums[0][0], column, columns);
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
