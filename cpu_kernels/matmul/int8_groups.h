// Small groups of 8-bit codes: their sums never leave the registers, by VNNI.
#pragma once

#include "int8_pack.h"
#include "integer.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// Groups of at most so many codes are small; of larger ones AMX and whole vectors make more.
constexpr int64_t kSmallGroup = 64;

FUSEWHEEL_INLINE bool has_small_groups(const MatmulArgs& args) {
  return args.rounded.groups > 1 && args.rounded.padded == args.weight.group_size &&
         args.rounded.padded <= kSmallGroup;
}

// Packed codes of groups that follow each other, one column a lane, and their scales.
struct SmallGroups {
  const Bytes* panels[kByteVectors];
  const Vec<float>* scales[kByteVectors];
  int64_t first;
  int64_t count;
  int64_t quads;  // of a group
};

// `rows` rows of a from `row` on, times two panels.
template <int rows>
__attribute__((noinline)) void small_groups_tile(const RoundedRows& a, int64_t row,
                                                 const SmallGroups& groups, float* sums) {
  Vec<float> total[rows][kByteVectors];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kByteVectors; ++v) {
      total[r][v] = groups.first > 0 ? load(sums + r * kUnit + v * kByteLanes) : Vec<float>{};
    }
  }
  const int8_t* codes = a.codes + row * a.stride + groups.first * a.padded;
  const int64_t place = row * a.groups + groups.first;
  int64_t q = 0;
  for (int64_t g = 0; g < groups.count; ++g) {
    Integers products[rows][kByteVectors];
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      // Codes of the weight are 128 too large.
      const Integers offset = -a.offsets[place + r * a.groups + g] - Integers{};
#pragma GCC unroll 2
      for (int v = 0; v < kByteVectors; ++v) {
        products[r][v] = offset;
      }
    }
    for (const int64_t end = q + groups.quads; q < end; ++q) {
#pragma GCC unroll 6
      for (int r = 0; r < rows; ++r) {
        const Bytes factor = repeat_four(codes + r * a.stride + 4 * q);
#pragma GCC unroll 2
        for (int v = 0; v < kByteVectors; ++v) {
          add_products(products[r][v], groups.panels[v][q], factor);
        }
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const Vec<float> step = splat(a.steps[place + r * a.groups + g]);
#pragma GCC unroll 2
      for (int v = 0; v < kByteVectors; ++v) {
        total[r][v] += from_codes(products[r][v]) * groups.scales[v][g] * step;
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kByteVectors; ++v) {
      store(sums + r * kUnit + v * kByteLanes, total[r][v]);
    }
  }
}

// Columns [column, column + columns) of y for rows [row, row + rows) of a, into scratch.sums.
inline void small_groups_unit(const MatmulArgs& args, int64_t row, int64_t rows, int64_t column,
                              int64_t columns, const Int8Scratch& scratch) {
  const RoundedRows& a = args.rounded;
  const LinearWeight& weight = args.weight;
  constexpr int64_t most = kByteDepth / kInt4Block;  // groups
  Vec<float> scales[kBytePanels][most];
  const int64_t together = kByteDepth / a.padded;
  for (int64_t first = 0; first < a.groups; first += together) {
    const int64_t count = a.groups - first < together ? a.groups - first : together;
    const int64_t depth = count * a.padded;
    pack_int8(weight, column, columns, first * a.padded, depth, depth, true, scratch.codes);
    for (int64_t panel = 0; panel < kBytePanels; ++panel) {
      int64_t places[kByteLanes];
      for (int lane = 0; lane < kByteLanes; ++lane) {
        const int64_t own = panel * kByteLanes + lane;
        places[lane] = (column + (own < columns ? own : columns - 1)) * weight.groups + first;
      }
      pack_groups(weight.scale_dtype, weight.scales, places, count, 1, scales[panel]);
    }
    for (int64_t panel = 0; panel < kBytePanels; panel += kByteVectors) {
      const Bytes* codes = scratch.codes + panel * (depth / 4);
      const SmallGroups groups = {{codes, codes + depth / 4},
                                  {scales[panel], scales[panel + 1]},
                                  first, count, a.padded / 4};
      float* sums = scratch.sums + panel * kByteLanes;
      by_tiles<kCodeRows>(rows, [&](auto together, int64_t i) {
        small_groups_tile<decltype(together)::value>(a, row + i, groups, sums + i * kUnit);
      });
    }
  }
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
