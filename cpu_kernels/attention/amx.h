// Products of bfloat16 by AMX.
//
// A tile is 16 rows of 64 bytes. One instruction adds to 16 x 16 sums in float32 the products of 16 x 32
// numbers a, row by row, with 32 x 16 numbers b, of which two neighbours of a column lie side by side.
#pragma once

#include "simd/amx.h"
#include "tiles.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX512F__)
constexpr bool kHasAmx = true;
#else
constexpr bool kHasAmx = false;
#endif

// Whether attention of this shape is computed by the tasks below.
FUSEWHEEL_INLINE bool uses_amx(const AttentionShape& shape) {
  return kHasAmx && shape.dtype == Dtype::kBFloat16 && choices().amx;
}

AttentionPlan amx_attention_plan(const AttentionShape& shape);
void amx_attention_task(const AttentionArgs& args, int64_t index, void* scratch);
AttentionPlan amx_attention_backward_plan(const AttentionShape& shape);
void amx_attention_backward_task(const AttentionBackwardTasks& args, int64_t index, void* scratch);

#if defined(__AVX512F__)

constexpr int64_t kStep = 32;              // depth of a product
constexpr int64_t kPair = 2 * kTile;       // two tiles side by side
constexpr int64_t kTileSize = kTile * kStep;

// Between rows of bfloat16 that are multiplied: whole steps, an odd number of cache lines.
constexpr int64_t step_stride(int64_t size) { return ((size + kStep - 1) / kStep | 1) * kStep; }
// Between rows of sums.
constexpr int64_t sum_stride(int64_t size) { return ((size + kTile - 1) / kTile | 1) * kTile; }

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
    _tile_loadd(6, b.data + step * kTileSize, kLine);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b.data + b.tile + step * kTileSize, kLine);
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
FUSEWHEEL_AMX_INLINE void amx_product(const BFloat16* a, int64_t a_stride, int64_t rows, Columns b,
                                      int64_t columns, int64_t depth, float* c, int64_t c_stride,
                                      bool accumulate) {
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

// Thirty-two numbers rounded to bfloat16, those of `low` first.
FUSEWHEEL_AMX_INLINE __m512i rounded(Vec<float> low, Vec<float> high) {
  return bit_cast<__m512i>(_mm512_cvtne2ps_pbh(bit_cast<__m512>(high), bit_cast<__m512>(low)));
}

#endif  // __AVX512F__

}  // namespace fusewheel::FUSEWHEEL_ISA
