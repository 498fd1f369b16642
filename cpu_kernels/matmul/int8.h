// Activations rounded to int8 against 8-bit codes, in integers: by VNNI, 4 products a lane and
// instruction, by AMX, or as words.
//
// The sums of a group are exact; each costs one conversion and two multiplications afterwards.
#pragma once

#include "int8_amx.h"
#include "int8_groups.h"
#include "int8_pack.h"
#include "int8_rows.h"
#include "int8_words.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

constexpr int kByteRows = 6;

// `rows` rows of a times two panels.
template <int rows>
__attribute__((noinline)) void int8_tile(const int8_t* a, int64_t a_stride, const Bytes* panel,
                                         int64_t quads, int32_t* products, bool accumulate) {
  Integers sums[rows][kByteVectors];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kByteVectors; ++v) {
      sums[r][v] = Integers{};
      if (accumulate) {
        __builtin_memcpy(&sums[r][v], products + r * kUnit + v * kByteLanes, sizeof(Integers));
      }
    }
  }
  for (int64_t q = 0; q < quads; ++q) {
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const Bytes factor = repeat_four(a + r * a_stride + 4 * q);
#pragma GCC unroll 2
      for (int v = 0; v < kByteVectors; ++v) {
        add_products(sums[r][v], panel[v * quads + q], factor);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kByteVectors; ++v) {
      __builtin_memcpy(products + r * kUnit + v * kByteLanes, &sums[r][v], sizeof(Integers));
    }
  }
}

// All panels of a unit, by VNNI.
inline void int8_product(const int8_t* a, int64_t a_stride, int64_t rows, const Bytes* codes,
                         int64_t depth, int32_t* products, bool accumulate) {
  const int64_t quads = depth / 4;
  for (int64_t panel = 0; panel < kBytePanels; panel += kByteVectors) {
    const Bytes* own = codes + panel * quads;
    int32_t* to = products + panel * kByteLanes;
    int64_t i = 0;
    for (; i + kByteRows <= rows; i += kByteRows) {
      int8_tile<kByteRows>(a + i * a_stride, a_stride, own, quads, to + i * kUnit, accumulate);
    }
    for (; i < rows; ++i) {
      int8_tile<1>(a + i * a_stride, a_stride, own, quads, to + i * kUnit, accumulate);
    }
  }
}

// The sums of a group as floats, added to those of the groups before.
inline void add_group(const RoundedRows& a, int64_t row, int64_t rows, int64_t group, bool shifted,
                      const Int8Scratch& scratch) {
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t place = (row + i) * a.groups + group;
    const Vec<float> step = splat(a.steps[place]);
    const Integers offset = (shifted ? a.offsets[place] : 0) - Integers{};
    for (int64_t j = 0; j < kUnit; j += kByteLanes) {
      Integers product;
      __builtin_memcpy(&product, scratch.products + i * kUnit + j, sizeof(product));
      const Vec<float> value = from_codes(product - offset) * (load(scratch.scales + j) * step);
      float* sum = scratch.sums + i * kUnit + j;
      store(sum, group == 0 ? value : load(sum) + value);
    }
  }
}

// Those of a group for the columns of a unit.
inline void widen_scales(const LinearWeight& weight, int64_t column, int64_t columns, int64_t group,
                         float* to) {
  for (int64_t j = 0; j < kUnit; ++j) {
    const int64_t n = column + (j < columns ? j : columns - 1);
    widen_all(weight.scale_dtype, weight.scales, n * weight.groups + group, 1, to + j);
  }
}

// Columns [column, column + columns) of y for rows [row, row + rows) of a, into scratch.sums, by words.
inline void word_unit(const MatmulArgs& args, int64_t row, int64_t rows, int64_t column,
                      int64_t columns, const Int8Scratch& scratch) {
  const RoundedRows& a = args.rounded;
  const LinearWeight& weight = args.weight;
  const int16_t* words = reinterpret_cast<const int16_t*>(a.codes) + row * a.stride;
  Shorts* packed = reinterpret_cast<Shorts*>(scratch.codes);
  for (int64_t group = 0; group < a.groups; ++group) {
    for (int64_t k = 0; k < a.padded; k += kWordDepth) {
      const int64_t padded = a.padded - k < kWordDepth ? a.padded - k : kWordDepth;
      const int64_t live = weight.group_size - k < padded ? weight.group_size - k : padded;
      const int64_t first = group * weight.group_size + k;
      const bool last = first + live == weight.columns;
      // What is packed next: of these rows, or of those of the next unit.
      const int64_t ahead = last ? kUnit * weight.stride - first : live;
      Shorts* to = packed;
      pack_quads(weight, column, columns, first, live, padded, ahead,
                 [&](Bytes codes) {
                   widen_quad(codes, to);
                   to += 2;
                 });
      word_product(words + group * a.padded + k, a.stride, rows, packed, padded, scratch.products,
                   k > 0);
    }
    widen_scales(weight, column, columns, group, scratch.scales);
    add_group(a, row, rows, group, false, scratch);
  }
}

// The same by any instruction.
inline void int8_unit(const MatmulArgs& args, int64_t row, int64_t rows, int64_t column,
                      int64_t columns, const Int8Scratch& scratch) {
  const RoundedRows& a = args.rounded;
  const LinearWeight& weight = args.weight;
  if (a.are_words) {
    return word_unit(args, row, rows, column, columns, scratch);
  }
  if (has_small_groups(args)) {
    return small_groups_unit(args, row, rows, column, columns, scratch);
  }
  const bool few = is_few_int8(args);
  const bool amx = !few && uses_int8_amx(a, args.m);
  for (int64_t group = 0; group < a.groups; ++group) {
    if (few) {
      few_int8(args, column, columns, group, scratch.products);
    }
    for (int64_t k = 0; !few && k < a.padded; k += kByteDepth) {
      const int64_t padded = a.padded - k < kByteDepth ? a.padded - k : kByteDepth;
      const int64_t live = weight.group_size - k < padded ? weight.group_size - k : padded;
      pack_int8(weight, column, columns, group * weight.group_size + k, live, padded,
                !amx, scratch.codes);
      const int8_t* codes = a.codes + row * a.stride + group * a.padded + k;
      const auto multiply = amx ? int8_amx_product : int8_product;
      multiply(codes, a.stride, rows, scratch.codes, padded, scratch.products, k > 0);
    }
    widen_scales(weight, column, columns, group, scratch.scales);
    add_group(a, row, rows, group, !amx, scratch);
  }
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
