// Products of bfloat16 by AMX, or by AVX512_BF16 with the same neighbours side by side in memory.
//
// A tile is 16 rows of 64 bytes. One instruction adds to 16 x 16 sums in float32 the products of 16 x 32
// numbers a, row by row, with 32 x 16 numbers b, of which two neighbours of a column lie side by side.
#pragma once

#include <cstddef>

#include "bfloat16_rows.h"
#include "simd/amx.h"
#include "simd/transpose.h"
#include "next_rows.h"
#include "tile.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX512F__)

constexpr int64_t kStep = kBFloat16Step;   // depth of a product
constexpr int64_t kPair = 2 * kTile;       // two tiles side by side
constexpr int64_t kTileSize = kTile * kStep;
constexpr size_t kTileBytes = 64;          // of a row of a tile

// Between rows of bfloat16 that are multiplied: whole steps, an odd number of cache lines.
constexpr int64_t step_stride(int64_t size) { return ((size + kStep - 1) / kStep | 1) * kStep; }

// Numbers to multiply by: tiles of 16 columns, each with its steps in a row.
struct Columns {
  const BFloat16* data;
  int64_t tile;  // from one tile to the next

  FUSEWHEEL_INLINE Columns at(int64_t column, int64_t depth) const {
    return {data + column / kTile * tile + depth / kStep * kTileSize, tile};
  }
};

// 16 * tiles rows and 32 columns of sums.
template <int tiles>
FUSEWHEEL_AMX_INLINE void amx_block(const BFloat16* a, int64_t a_stride, Columns b, int64_t steps,
                                    float* c, int64_t c_stride, bool accumulate) {
  const auto bytes = static_cast<size_t>(c_stride) * sizeof(float);
  if (accumulate) {
    _tile_loadd(0, c, bytes);
    _tile_loadd(1, c + kTile, bytes);
    if constexpr (tiles == 2) {
      _tile_loadd(2, c + kTile * c_stride, bytes);
      _tile_loadd(3, c + kTile * c_stride + kTile, bytes);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < steps; ++step) {
    const auto row = static_cast<size_t>(a_stride) * sizeof(BFloat16);
    _tile_loadd(4, a + step * kStep, row);
    _tile_loadd(6, b.data + step * kTileSize, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b.data + b.tile + step * kTileSize, kTileBytes);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (tiles == 2) {
      _tile_loadd(5, a + kTile * a_stride + step * kStep, row);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, bytes);
  _tile_stored(1, c + kTile, bytes);
  if constexpr (tiles == 2) {
    _tile_stored(2, c + kTile * c_stride, bytes);
    _tile_stored(3, c + kTile * c_stride + kTile, bytes);
  }
}

// c = a * b, or c += a * b, for a multiple of 16 rows and of 32 columns.
FUSEWHEEL_AMX inline __attribute__((noinline)) void amx_product(
    const BFloat16* a, int64_t a_stride, int64_t rows, Columns b, int64_t columns, int64_t depth,
    float* c, int64_t c_stride, bool accumulate) {
  const int64_t steps = depth / kStep;
  for (int64_t j = 0; j < columns; j += kPair) {
    const Columns own = b.at(j, 0);
    int64_t i = 0;
    for (; i + kPair <= rows; i += kPair) {
      amx_block<2>(a + i * a_stride, a_stride, own, steps, c + i * c_stride + j, c_stride,
                   accumulate);
    }
    if (i < rows) {
      amx_block<1>(a + i * a_stride, a_stride, own, steps, c + i * c_stride + j, c_stride,
                   accumulate);
    }
  }
}

// Rows that AVX512_BF16 multiplies at a time, and the fewest of them.
constexpr int kDotBlock = 8;
constexpr int kDotRest = 4;

// Two sums for each of some rows: what AVX512_BF16 adds to 32 columns. Two neighbours of a row are
// multiplied by a row of two neighbours of sixteen columns.
template <int rows, typename Each>
FUSEWHEEL_AMX_INLINE void dot_block(const BFloat16* a, int64_t a_stride, Columns b, int64_t depth,
                                    float* c, int64_t c_stride, bool accumulate, const Each& each) {
  __m512 sums[rows][2];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < 2; ++j) {
      sums[i][j] = accumulate ? _mm512_loadu_ps(c + i * c_stride + j * kTile) : __m512{};
    }
  }
  for (int64_t k = 0; k < depth; k += 2) {
    each(k);
    const auto left = bit_cast<__m512bh>(_mm512_loadu_si512(b.data + k * kTile));
    const auto right = bit_cast<__m512bh>(_mm512_loadu_si512(b.data + b.tile + k * kTile));
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      int pair;
      __builtin_memcpy(&pair, a + i * a_stride + k, sizeof(pair));
      const auto factor = bit_cast<__m512bh>(_mm512_set1_epi32(pair));
      sums[i][0] = _mm512_dpbf16_ps(sums[i][0], factor, left);
      sums[i][1] = _mm512_dpbf16_ps(sums[i][1], factor, right);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < 2; ++j) {
      _mm512_storeu_ps(c + i * c_stride + j * kTile, sums[i][j]);
    }
  }
}

// c = a * b, or c += a * b, for a multiple of 4 rows and of 32 columns, and an even depth. Each step of k
// asks for a line of what is next.
FUSEWHEEL_AMX inline __attribute__((noinline)) void dot_product(
    const BFloat16* a, int64_t a_stride, int64_t rows, Columns b, int64_t columns, int64_t depth,
    float* c, int64_t c_stride, bool accumulate, NextRows next = {}) {
  const auto ask = [&](int64_t) FUSEWHEEL_AMX FUSEWHEEL_INLINED { next.ask(); };
  for (int64_t j = 0; j < columns; j += kPair) {
    int64_t i = 0;
    for (; i + kDotBlock <= rows && !next.is_done(); i += kDotBlock) {
      dot_block<kDotBlock>(a + i * a_stride, a_stride, b.at(j, 0), depth, c + i * c_stride + j,
                           c_stride, accumulate, ask);
    }
    for (; i + kDotBlock <= rows; i += kDotBlock) {
      dot_block<kDotBlock>(a + i * a_stride, a_stride, b.at(j, 0), depth, c + i * c_stride + j,
                           c_stride, accumulate, Nothing{});
    }
    if (i < rows) {
      dot_block<kDotRest>(a + i * a_stride, a_stride, b.at(j, 0), depth, c + i * c_stride + j,
                          c_stride, accumulate, Nothing{});
    }
  }
}

// By the instructions that the processor has.
FUSEWHEEL_AMX_INLINE void product(const BFloat16* a, int64_t a_stride, int64_t rows, Columns b,
                                  int64_t columns, int64_t depth, float* c, int64_t c_stride,
                                  bool accumulate, const NextRows& next = {}) {
  if (choices().amx) {
    return amx_product(a, a_stride, rows, b, columns, depth, c, c_stride, accumulate);
  }
  dot_product(a, a_stride, rows, b, columns, depth, c, c_stride, accumulate, next);
}

// Thirty-two numbers rounded to bfloat16, those of `low` first.
FUSEWHEEL_AMX_INLINE __m512i rounded(Vec<float> low, Vec<float> high) {
  return bit_cast<__m512i>(_mm512_cvtne2ps_pbh(bit_cast<__m512>(high), bit_cast<__m512>(low)));
}

// Two numbers of 16 bits a lane, turned: sixteen rows of sixteen lanes.
FUSEWHEEL_INLINE void turn_pairs(Vec<float>* block, BFloat16* to, int64_t stride) {
  transpose<float>(block);
  for (int i = 0; i < kTile; ++i) {
    __builtin_memcpy(to + i * stride, &block[i], sizeof(block[i]));
  }
}

#endif  // __AVX512F__

}  // namespace fusewheel::FUSEWHEEL_ISA
