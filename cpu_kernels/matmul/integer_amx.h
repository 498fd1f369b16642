// Rounded activations against panels of 4-bit codes by AMX: a block of 32 codes is one product of 16 rows
// and 16 columns, and costs less than its scale does afterwards.
#pragma once

#include "simd/amx.h"
#include "integer.h"
#include "streams.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX512F__)

// Blocks whose products wait in the first-level cache for their scales.
constexpr int64_t kWaitingBlocks = 8;
constexpr int64_t kTileSums = kTile * kTile;
// Below so many rows most of a tile would be idle.
constexpr int64_t kFewestCodeRows = 12;

FUSEWHEEL_INLINE bool uses_int4_amx(const MatmulArgs& args) {
  return choices().amx && args.m >= kFewestCodeRows;
}

// Products of `count` blocks, those of two panels side by side: [block, panel, row, column].
FUSEWHEEL_AMX_INLINE void multiply_blocks(const int8_t* a, int64_t a_stride,
                                          const CodePanel* panels, int64_t begin, int64_t count,
                                          int32_t* products) {
  constexpr size_t line = 64;
  for (int64_t i = 0; i < count; ++i) {
    int32_t* to = products + i * kCodePanels * kTileSums;
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(4, a + i * kInt4Block, static_cast<size_t>(a_stride));
    _tile_loadd(6, panels[0].codes[begin + i], line);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, panels[1].codes[begin + i], line);
    _tile_dpbssd(1, 4, 7);
    _tile_stored(0, to, line);
    _tile_stored(1, to + kTileSums, line);
  }
}

// Adds those of `rows` rows, times their scales, to sums.
template <int rows>
FUSEWHEEL_INLINE void add_blocks(const int32_t* products, const float* steps, const float* totals,
                                 int64_t groups, const CodePanel* panels, int64_t begin,
                                 int64_t count, float* c, int64_t c_stride, bool accumulate) {
  Vec<float> sums[rows][kCodePanels];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kCodePanels; ++p) {
      sums[r][p] = accumulate ? load(c + r * c_stride + p * kTile) : Vec<float>{};
    }
  }
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 2
    for (int p = 0; p < kCodePanels; ++p) {
      const Vec<float> scale = panels[p].scales[begin + i];
      const Vec<float> zero = panels[p].zeros[begin + i];
      const int32_t* from = products + (i * kCodePanels + p) * kTileSums;
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        Integers product;
        __builtin_memcpy(&product, from + r * kTile, sizeof(product));
        sums[r][p] += from_codes(product) * scale * splat(steps[r * groups + i]);
        sums[r][p] += zero * splat(totals[r * groups + i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kCodePanels; ++p) {
      store(c + r * c_stride + p * kTile, sums[r][p]);
    }
  }
}

// `rows` rows of a, 16 at most, from `row` on, times two panels whose first block is `begin`.
__attribute__((noinline)) FUSEWHEEL_AMX inline void amx_code_tile(
    const RoundedRows& a, int64_t row, int64_t rows, int64_t begin, int64_t blocks,
    const CodePanel* panels, float* c, int64_t c_stride, bool accumulate) {
  constexpr int together = 4;
  alignas(64) int32_t products[kWaitingBlocks * kCodePanels * kTileSums];
  const int8_t* codes = a.codes + row * a.stride + begin * kInt4Block;
  const int64_t place = row * a.groups + begin;
  for (int64_t i = 0; i < blocks; i += kWaitingBlocks) {
    const int64_t count = blocks - i < kWaitingBlocks ? blocks - i : kWaitingBlocks;
    multiply_blocks(codes + i * kInt4Block, a.stride, panels, i, count, products);
    const auto add = [&](auto some, int64_t r) {
      constexpr int number = decltype(some)::value;
      const int64_t own = place + r * a.groups + i;
      add_blocks<number>(products + r * kTile, a.steps + own, a.sums + own, a.groups, panels, i,
                         count, c + r * c_stride, c_stride, accumulate || i > 0);
    };
    int64_t r = 0;
    for (; r + together <= rows; r += together) {
      add(Constant<together>{}, r);
    }
    for (; r < rows; ++r) {
      add(Constant<1>{}, r);
    }
  }
}

// All rows of a block of y.
FUSEWHEEL_AMX inline void amx_code_rows(const RoundedRows& a, int64_t row, int64_t rows,
                                        int64_t begin, int64_t blocks, const CodePanel* panels,
                                        float* c, int64_t c_stride, bool accumulate) {
  for (int64_t i = 0; i < rows; i += kTile) {
    const int64_t live = rows - i < kTile ? rows - i : kTile;
    const Tiles tiles(live, kInt4Block);
    amx_code_tile(a, row + i, live, begin, blocks, panels, c + i * c_stride, c_stride, accumulate);
  }
}

#endif  // __AVX512F__

}  // namespace fusewheel::FUSEWHEEL_ISA
