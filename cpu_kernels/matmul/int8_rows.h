// One to four rows of rounded activations: dot products along the rows of 8-bit codes, which are not packed.
#pragma once

#include "int8_pack.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// Up to this many rows count as few, if so many codes share a scale that adding up lanes costs little. Packing
// pays from three rows on: their products would wait for memory.
constexpr int kFewByteRows = 2;
constexpr int64_t kFewestCodes = 256;
// Where rows of the weight are read one after another, up to kTurnByteRows rows of a count as few, if they have
// no more than kTurnBytes bytes in all: the first-level cache then has room for the weight. Pairs of rows of a
// take kTurnCodes codes in turn, and only the first pair reads them from memory.
constexpr int kTurnByteRows = 4;
constexpr int64_t kTurnBytes = 16384;
constexpr int64_t kTurnCodes = 2048;
// Rows of the weight in one register tile, whose sums fill one vector.
constexpr int kByteDotColumns = kLanes<float> / kFewByteRows;

FUSEWHEEL_INLINE bool is_few_int8(const MatmulArgs& args) {
  const bool turns = choices().rows_in_turn && args.m * args.k <= kTurnBytes;
  return args.m <= (turns ? kTurnByteRows : kFewByteRows) && args.weight.group_size >= kFewestCodes;
}

// `rows` rows of a against kByteDotColumns rows of the weight, of which the last may be the same. One sum
// a lane, those of a row of a side by side. Asks for what lies `ahead` bytes further on.
template <int rows>
__attribute__((noinline)) Integers int8_dots(const int8_t* a, int64_t a_stride,
                                             const int8_t* const* w, int64_t count, int64_t ahead) {
  Integers sums[kFewByteRows * kByteDotColumns] = {};
  const auto step = [&](int64_t i, auto load_codes) {
    Bytes codes[kByteDotColumns];
#pragma GCC unroll 8
    for (int j = 0; j < kByteDotColumns; ++j) {
      __builtin_prefetch(w[j] + i + ahead);
      codes[j] = shifted(load_codes(w[j] + i));
    }
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
      const Bytes factor = load_bytes(a + r * a_stride + i);
#pragma GCC unroll 8
      for (int j = 0; j < kByteDotColumns; ++j) {
        add_products(sums[r * kByteDotColumns + j], codes[j], factor);
      }
    }
  };
  int64_t i = 0;
  for (; i + kBytes <= count; i += kBytes) {
    step(i, [](const int8_t* from) { return load_bytes(from); });
  }
  if (i < count) {
    step(i, [&](const int8_t* from) { return load_some(from, count - i); });
  }
  fold_all<kLanes<float> / 2>(sums);
  return sums[0];
}

// `rows` rows of a against one of the weight: their sums, or what is added to them.
template <int rows>
FUSEWHEEL_INLINE void int8_dot(const int8_t* a, int64_t a_stride, const int8_t* w, int64_t count,
                               bool first, int32_t* out) {
  constexpr int parts = 4;
  Integers sums[rows][parts] = {};
  int64_t i = 0;
  for (; i + parts * kBytes <= count; i += parts * kBytes) {
#pragma GCC unroll 4
    for (int part = 0; part < parts; ++part) {
      const int64_t at = i + part * kBytes;
      const Bytes codes = shifted(load_bytes(w + at));
#pragma GCC unroll 2
      for (int r = 0; r < rows; ++r) {
        add_products(sums[r][part], codes, load_bytes(a + r * a_stride + at));
      }
    }
  }
  for (; i < count; i += kBytes) {
    const Bytes codes = shifted(load_some(w + i, count - i));
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
      add_products(sums[r][0], codes, load_bytes(a + r * a_stride + i));
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < rows; ++r) {
    const Integers all = sums[r][0] + sums[r][1] + (sums[r][2] + sums[r][3]);
    int32_t sum = first ? 0 : out[r * kUnit];
    for (int lane = 0; lane < kByteLanes; ++lane) {
      sum += all[lane];
    }
    out[r * kUnit] = sum;
  }
}

// All codes of one row of the weight against all rows of a, two at a time.
inline void int8_in_turn(const int8_t* a, int64_t a_stride, int64_t rows, const int8_t* w, int64_t size,
                         int32_t* out) {
  for (int64_t i = 0; i < size; i += kTurnCodes) {
    const int64_t count = size - i < kTurnCodes ? size - i : kTurnCodes;
    for (int64_t row = 0; row < rows; row += 2) {
      const auto dot = row + 1 < rows ? int8_dot<2> : int8_dot<1>;
      dot(a + row * a_stride + i, a_stride, w + i, count, i == 0, out + row * kUnit);
    }
  }
}

// Columns [column, column + columns) of the products of a group, for all rows.
inline void few_int8(const MatmulArgs& args, int64_t column, int64_t columns, int64_t group,
                     int32_t* products) {
  const RoundedRows& a = args.rounded;
  const LinearWeight& weight = args.weight;
  if (choices().rows_in_turn) {
    const int8_t* w = static_cast<const int8_t*>(weight.data) + group * weight.group_size;
    for (int64_t j = 0; j < columns; ++j) {
      int8_in_turn(a.codes + group * a.padded, a.stride, args.m, w + (column + j) * weight.stride,
                   weight.group_size, products + j);
    }
    return;
  }
  const int64_t ahead = kByteDotColumns * weight.stride;
  for (int64_t j = 0; j < columns; j += kByteDotColumns) {
    const int8_t* w[kByteDotColumns];
    for (int c = 0; c < kByteDotColumns; ++c) {
      const int64_t own = j + c < columns ? j + c : columns - 1;
      w[c] = static_cast<const int8_t*>(weight.data) + (column + own) * weight.stride +
             group * weight.group_size;
    }
    const auto dots = args.m == 1 ? int8_dots<1> : int8_dots<2>;
    const Integers sums =
        dots(a.codes + group * a.padded, a.stride, w, weight.group_size, ahead);
    for (int64_t row = 0; row < args.m; ++row) {
      for (int c = 0; c < kByteDotColumns && j + c < columns; ++c) {
        products[row * kUnit + j + c] = sums[row * kByteDotColumns + c];
      }
    }
  }
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
