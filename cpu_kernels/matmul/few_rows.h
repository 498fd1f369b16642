// Few rows of a: in which order a thread reads its rows of the weight.
#pragma once

#include "rows.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Columns of y from `begin` on, from `streams` rows of the weight at a time. These lie `apart` rows from each other, and
// compute(column, apart, out) multiplies them: out[stream * rows + row]. A stream has a multiple of `whole` columns.
// Returns the first column that is left.
template <int streams, int whole, int most_rows, typename Compute, typename Finish>
FUSEWHEEL_INLINE int64_t far_columns(int64_t rows, int64_t begin, int64_t end, Compute compute, Finish finish) {
  const int64_t apart = (end - begin) / (streams * whole) * whole;
  for (int64_t first = 0; first < apart; first += kUnit) {
    const int64_t columns = apart - first < kUnit ? apart - first : kUnit;
    float sums[streams][most_rows][kUnit];
    for (int64_t j = 0; j < columns; ++j) {
      float out[streams * most_rows + kLanes<float>];
      compute(begin + first + j, apart, out);
      for (int i = 0; i < streams; ++i) {
        for (int64_t row = 0; row < rows; ++row) {
          sums[i][row][j] = out[i * rows + row];
        }
      }
    }
    for (int i = 0; i < streams; ++i) {
      finish(&sums[i][0][0], begin + i * apart + first, columns);
    }
  }
  return begin + streams * apart;
}

// For one row of a. What is left is whole streams, so that no row of the weight is read by itself for it.
template <typename Finish>
FUSEWHEEL_INLINE int64_t far_one_row(const MatmulArgs& args, int64_t begin, int64_t end, const OneRow& one,
                                     Finish finish) {
  const auto compute = [&](int64_t column, int64_t apart, float* out) FUSEWHEEL_INLINED {
    far_rows(args, column, apart, one, out);
  };
  return far_columns<kFarStreams, kStreams, 1>(1, begin, end, compute, finish);
}

// Lane sums of all rows of a with one row of the weight of each stream: out[stream * rows + row].
template <typename W>
FUSEWHEEL_INLINE void far_lane_sums(const MatmulArgs& args, int64_t begin, int64_t apart, Vec<float>* memory,
                                    float* out) {
  const LinearWeight& weight = args.weight;
  const float* a = static_cast<const float*>(args.a);
  const W* w = static_cast<const W*>(weight.data) + begin * weight.stride;
  for (int64_t k = 0; k < args.k; k += kFewDepth) {
    const int64_t count = args.k - k < kFewDepth ? args.k - k : kFewDepth;
    dot_rows<kDotColumns>(From::kCache, args.m, a + k, args.a_stride, w + k, apart * weight.stride, count,
                          memory, k == 0);
  }
  constexpr int lanes = kLanes<float>;
  Vec<float> sums[(kFewRows * kDotColumns + lanes - 1) / lanes * lanes];
  for (int i = 0; i < kDotColumns; ++i) {
    float scale = 1;
    if (weight.kind == WeightKind::kInt8) {
      widen_all(weight.scale_dtype, weight.scales, begin + i * apart, 1, &scale);
    }
    for (int64_t row = 0; row < args.m; ++row) {
      sums[i * args.m + row] = memory[row * kUnit + i] * scale;
    }
  }
  const int64_t live = kDotColumns * args.m;
  for (int64_t i = live; i % lanes != 0; ++i) {
    sums[i] = Vec<float>{};
  }
  for (int64_t i = 0; i < live; i += lanes) {
    store(out + i, sums_of<float>(sums + i));
  }
}

template <typename W, typename Finish>
FUSEWHEEL_INLINE int64_t far_few_rows(const MatmulArgs& args, int64_t begin, int64_t end, Vec<float>* memory,
                                      Finish finish) {
  const auto compute = [&](int64_t column, int64_t apart, float* out) FUSEWHEEL_INLINED {
    far_lane_sums<W>(args, column, apart, memory, out);
  };
  return far_columns<kDotColumns, 1, kFewRows>(args.m, begin, end, compute, finish);
}

template <typename Finish>
FUSEWHEEL_INLINE int64_t far_few_rows(const MatmulArgs& args, int64_t begin, int64_t end, Vec<float>* memory,
                                      Finish finish) {
  if (args.weight.kind == WeightKind::kInt8) {
    return far_few_rows<int8_t>(args, begin, end, memory, finish);
  }
  for_dtype(args.weight.dtype, [&](auto zero) {
    using W = decltype(zero);
    if constexpr (sizeof(Accumulate<W>) == sizeof(float)) {
      begin = far_few_rows<W>(args, begin, end, memory, finish);
    }
  });
  return begin;
}

// Columns [begin, end) of y, a unit at a time; finish(sums, column, columns) rounds and stores.
template <typename Finish>
FUSEWHEEL_INLINE void few_rows(const MatmulArgs& args, int64_t begin, int64_t end, float* memory,
                               Finish finish) {
  Vec<float>* lane_sums = reinterpret_cast<Vec<float>*>(memory);
  float* decoded = memory + kLaneSums;
  OneRow one_row_memory = {};
  const bool several = has_digit_rows(args);
  bool exact = has_exact_rows(args);
  one_row_scratch(args.weight, several || exact ? args.m : 1, decoded + kDecoded, one_row_memory);
  const bool one = args.m == 1 && prepare_one_row(args, one_row_memory);
  exact = exact && prepare_exact_rows(args, one_row_memory);
  if (several) {
    prepare_digit_rows(args, one_row_memory);
  }
  const bool in_place = is_in_place(args);
  const bool scales_sums = args.weight.kind != WeightKind::kFloating &&
                           (one || exact || several || in_place);
  const auto settle = [&](float* sums, int64_t column, int64_t columns) {
    if (scales_sums && !all_finite(sums, args.m, columns, kUnit)) {
      multiply_again(args, 0, args.m, column, columns, sums, kUnit);
    }
    finish(sums, column, columns);
  };
  if (one && reads_far_rows(args.weight, one_row_memory)) {
    begin = far_one_row(args, begin, end, one_row_memory, settle);
  } else if (!one && !exact && !several && in_place && far_rows_pay(args.weight)) {
    begin = far_few_rows(args, begin, end, lane_sums, settle);
  }
  for (int64_t column = begin; column < end; column += kUnit) {
    const int64_t columns = end - column < kUnit ? end - column : kUnit;
    float sums[kFewRows][kUnit];
    if (one) {
      one_row(args, column, columns, one_row_memory, sums[0]);
    } else if (exact) {
      exact_rows(args, column, columns, one_row_memory, sums[0], kUnit);
    } else if (several) {
      digit_rows(args, column, columns, one_row_memory, sums[0], kUnit);
    } else {
      few_sums(args, in_place, column, columns, decoded, lane_sums);
      for (int64_t row = 0; row < args.m; ++row) {
        for (int64_t j = 0; j < columns; j += kLanes<float>) {
          store(sums[row] + j, sums_of<float>(lane_sums + row * kUnit + j));
        }
      }
    }
    settle(&sums[0][0], column, columns);
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
