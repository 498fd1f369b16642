// Products of int8 by AMX: one instruction adds to 16 x 16 sums the products of 16 x 64 codes a, row by
// row, with 64 x 16 codes b, of which four neighbours of a column lie side by side.
#pragma once

#include "simd/amx.h"
#include "int8_pack.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX512F__)

// Codes in a row of a tile.
constexpr int64_t kAmxDepth = 64;
// Below so many rows most of a tile would be idle.
constexpr int64_t kFewestTileRows = 12;

FUSEWHEEL_INLINE bool uses_int8_amx(const RoundedRows& a, int64_t m) {
  return choices().amx && m >= kFewestTileRows && a.padded % kAmxDepth == 0;
}

// Up to 16 rows, or 32, times two panels of 16 columns.
template <int tiles>
FUSEWHEEL_AMX_INLINE void int8_amx_tile(const int8_t* a, int64_t a_stride, const int8_t* panels,
                                        int64_t depth, int32_t* c, bool accumulate) {
  constexpr size_t bytes = kUnit * sizeof(int32_t);
  constexpr size_t line = kAmxDepth;
  const auto row = static_cast<size_t>(a_stride);
  int32_t* below = c + kTile * kUnit;
  if (accumulate) {
    _tile_loadd(0, c, bytes);
    _tile_loadd(1, c + kTile, bytes);
    if constexpr (tiles == 2) {
      _tile_loadd(2, below, bytes);
      _tile_loadd(3, below + kTile, bytes);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < depth; k += kAmxDepth) {
    _tile_loadd(4, a + k, row);
    _tile_loadd(6, panels + k * kTile, line);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, panels + (depth + k) * kTile, line);
    _tile_dpbssd(1, 4, 7);
    if constexpr (tiles == 2) {
      _tile_loadd(5, a + kTile * a_stride + k, row);
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    }
  }
  _tile_stored(0, c, bytes);
  _tile_stored(1, c + kTile, bytes);
  if constexpr (tiles == 2) {
    _tile_stored(2, below, bytes);
    _tile_stored(3, below + kTile, bytes);
  }
}

// All rows times the panels of a unit.
__attribute__((noinline)) FUSEWHEEL_AMX inline void int8_amx_product(
    const int8_t* a, int64_t a_stride, int64_t rows, const Bytes* codes, int64_t depth,
    int32_t* products, bool accumulate) {
  const int8_t* panels = reinterpret_cast<const int8_t*>(codes);
  int64_t i = 0;
  if (rows >= kTile) {
    const Tiles whole;
    for (; i + 2 * kTile <= rows; i += 2 * kTile) {
      int8_amx_tile<2>(a + i * a_stride, a_stride, panels, depth, products + i * kUnit, accumulate);
    }
    if (i + kTile <= rows) {
      int8_amx_tile<1>(a + i * a_stride, a_stride, panels, depth, products + i * kUnit, accumulate);
      i += kTile;
    }
  }
  if (i < rows) {
    const Tiles rest(rows - i);
    int8_amx_tile<1>(a + i * a_stride, a_stride, panels, depth, products + i * kUnit, accumulate);
  }
}

#elif defined(__AVX2__)

FUSEWHEEL_INLINE bool uses_int8_amx(const RoundedRows&, int64_t) { return false; }
inline void int8_amx_product(const int8_t*, int64_t, int64_t, const Bytes*, int64_t, int32_t*, bool) {}

#endif

}  // namespace fusewheel::FUSEWHEEL_ISA
