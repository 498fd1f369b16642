// Activations rounded to int8 against 8-bit codes, in integers: by VNNI, 4 products a lane and
// instruction, by AMX, or as words.
//
// The sums of a group are exact; each costs one conversion and two multiplications afterwards.
#pragma once

#include "int8_amx.h"
#include "int8_groups.h"
#include "int8_pack.h"
#include "int8_rows.h"
#include "int8_tile.h"
#include "int8_words.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// By VNNI, four codes of a column in a lane.
struct Quads {
  using Code = int8_t;
  using Codes = Bytes;

  FUSEWHEEL_INLINE static Bytes repeat(const int8_t* from) { return repeat_four(from); }
  FUSEWHEEL_INLINE static void add(Integers& sum, Bytes codes, Bytes factor) {
    add_products(sum, codes, factor);
  }
};

// The sums of a group as floats, added to those of the groups before.
inline void add_group(const RoundedRows& a, int64_t row, int64_t rows, int64_t group, bool shifted,
                      const Int8Scratch& scratch) {
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t place = (row + i) * a.groups + group;
    const Vec<float> step = splat(a.steps[place]);
    const Bits offset = static_cast<uint32_t>(shifted ? a.offsets[place] : 0) - Bits{};
    for (int64_t j = 0; j < kUnit; j += kByteLanes) {
      Bits product;  // behind the last column it may be anything
      __builtin_memcpy(&product, scratch.products + i * kUnit + j, sizeof(product));
      const Vec<float> value = from_codes(bit_cast<Integers>(product - offset)) * load(scratch.scales + j) * step;
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
      Shorts* to = packed;
      pack_quads(weight, column, columns, group * weight.group_size + k, live, padded,
                 [&](Bytes codes) {
                   widen_quad(codes, to);
                   to += 2;
                 });
      int8_product<Words>(words + group * a.padded + k, a.stride, rows, packed, padded,
                          scratch.products, k > 0);
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
      const auto multiply = amx ? int8_amx_product : int8_product<Quads>;
      multiply(codes, a.stride, rows, scratch.codes, padded, scratch.products, k > 0);
    }
    widen_scales(weight, column, columns, group, scratch.scales);
    add_group(a, row, rows, group, !amx, scratch);
  }
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
