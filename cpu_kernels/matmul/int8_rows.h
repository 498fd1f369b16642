// One row of rounded activations, or two: dot products along the rows of 8-bit codes, which are not packed.
#pragma once

#include "int8_pack.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// Up to this many rows count as few, if so many codes share a scale that adding up lanes costs little. Packing
// pays from three rows on: their products would wait for memory.
constexpr int kFewByteRows = 2;
constexpr int64_t kFewestCodes = 256;
// Rows of the weight in one register tile, whose sums fill one vector.
constexpr int kByteDotColumns = kLanes<float> / kFewByteRows;

FUSEWHEEL_INLINE bool is_few_int8(const MatmulArgs& args) {
  return args.m <= kFewByteRows && args.weight.group_size >= kFewestCodes;
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

// One row of a against one of the weight.
FUSEWHEEL_INLINE int32_t int8_dot(const int8_t* a, const int8_t* w, int64_t count) {
  constexpr int parts = 4;
  Integers sums[parts] = {};
  int64_t i = 0;
  for (; i + parts * kBytes <= count; i += parts * kBytes) {
#pragma GCC unroll 4
    for (int part = 0; part < parts; ++part) {
      add_products(sums[part], shifted(load_bytes(w + i + part * kBytes)),
                   load_bytes(a + i + part * kBytes));
    }
  }
  for (; i < count; i += kBytes) {
    add_products(sums[0], shifted(load_some(w + i, count - i)), load_bytes(a + i));
  }
  const Integers all = sums[0] + sums[1] + (sums[2] + sums[3]);
  int32_t sum = 0;
  for (int lane = 0; lane < kByteLanes; ++lane) {
    sum += all[lane];
  }
  return sum;
}

// Columns [column, column + columns) of the products of a group, for all rows.
inline void few_int8(const MatmulArgs& args, int64_t column, int64_t columns, int64_t group,
                     int32_t* products) {
  const RoundedRows& a = args.rounded;
  const LinearWeight& weight = args.weight;
  if (args.m == 1 && choices().rows_in_turn) {
    const int8_t* w = static_cast<const int8_t*>(weight.data) + group * weight.group_size;
    for (int64_t j = 0; j < columns; ++j) {
      products[j] = int8_dot(a.codes + group * a.padded, w + (column + j) * weight.stride,
                             weight.group_size);
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
