// Products of rows of bfloat16 with a weight that is rounded to bfloat16 while it is packed.
#pragma once

#include "bfloat16_tile.h"
#include "block_bfloat16.h"
#include "decode.h"
#include "matmul.h"
#include "panel.h"

#if defined(__AVX512F__)

namespace fusewheel::FUSEWHEEL_ISA {

// The first `live` of so many numbers as a register holds, zeros behind them.
FUSEWHEEL_AMX_INLINE __m512i load_step(const BFloat16* from, int64_t live) {
  return live >= kStep ? _mm512_loadu_si512(from)
                       : _mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << live) - 1), from);
}

FUSEWHEEL_AMX_INLINE __m256i load_tile_row(const BFloat16* from, int64_t live) {
  return live >= kTile ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))
                       : _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << live) - 1), from);
}

// One tile of `depth` numbers of 16 columns; `read` gives those of a column that a step multiplies.
template <typename Read>
FUSEWHEEL_AMX_INLINE void turn_steps(int64_t depth, BFloat16* to, const Read& read) {
  for (int64_t step = 0; step < depth; step += kStep) {
    Vec<float> block[kTile];
    for (int64_t lane = 0; lane < kTile; ++lane) {
      block[lane] = bit_cast<Vec<float>>(read(lane, step));
    }
    turn_pairs(block, to + step * kTile, kStep);
  }
}

// One tile whose columns are rows of the weight. Columns past `live` are zeros, and so is what `depth`
// lacks to a whole step.
FUSEWHEEL_AMX inline void pack_bfloat16_rows(const LinearWeight& weight, int64_t column,
                                             int64_t live, int64_t k, int64_t depth, BFloat16* to) {
  if (is_bfloat16(weight)) {
    const auto* from = static_cast<const BFloat16*>(weight.data) + column * weight.stride + k;
    return turn_steps(depth, to, [&](int64_t lane, int64_t step) FUSEWHEEL_AMX FUSEWHEEL_INLINED {
      return lane < live ? load_step(from + lane * weight.stride + step, depth - step) : __m512i{};
    });
  }
  BFloat16 rows[kTile][kDepth];
  for (int64_t lane = 0; lane < kTile; ++lane) {
    const int64_t known = lane < live ? depth : 0;
    if (known > 0) {
      decode_rounded(weight, column + lane, k, known, rows[lane]);
    }
    const int64_t rest = whole_steps(depth) - known;
    __builtin_memset(rows[lane] + known, 0, static_cast<size_t>(rest) * sizeof(BFloat16));
  }
  turn_steps(depth, to, [&](int64_t lane, int64_t step) FUSEWHEEL_AMX FUSEWHEEL_INLINED {
    return _mm512_loadu_si512(rows[lane] + step);
  });
}

// Of 32 numbers the first 16 and the others, in turn.
FUSEWHEEL_AMX_INLINE __m512i beside(__m512i both) {
  __m512i places;
  for (int i = 0; i < kStep; ++i) {
    reinterpret_cast<uint16_t*>(&places)[i] = static_cast<uint16_t>(i / 2 + i % 2 * kTile);
  }
  return _mm512_permutexvar_epi16(places, both);
}

// Tiles whose columns are columns of the weight, two of its rows at a time.
FUSEWHEEL_AMX inline void pack_bfloat16_columns(const LinearWeight& weight, int64_t column,
                                                int64_t live, int64_t columns, int64_t k,
                                                int64_t depth, BFloat16* to) {
  const int64_t whole = whole_steps(depth);
  const bool in_place = is_bfloat16(weight);
  const auto* numbers = static_cast<const BFloat16*>(weight.data) + column;
  BFloat16 decoded[2][kStretch];
  for (int64_t step = 0; step < whole; step += 2) {
    const BFloat16* rows[2] = {};
    for (int64_t i = 0; i < 2 && step + i < depth; ++i) {
      rows[i] = in_place ? numbers + (k + step + i) * weight.stride : decoded[i];
      if (!in_place) {
        decode_rounded(weight, k + step + i, column, live, decoded[i]);
      }
    }
    for (int64_t j = 0; j < columns; j += kTile) {
      const int64_t left = live - j < 0 ? 0 : live - j;
      const __m256i zeros = {};
      const __m256i first = rows[0] != nullptr ? load_tile_row(rows[0] + j, left) : zeros;
      const __m256i second = rows[1] != nullptr ? load_tile_row(rows[1] + j, left) : zeros;
      const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
      _mm512_storeu_si512(to + j * whole + step * kTile, beside(both));
    }
  }
}

// Sums of columns [column, column + columns) for rows [row, row + rows) of a, and for rows behind them up
// to a whole tile. `packed` holds kDepth numbers of each column, up to whole pairs of tiles.
FUSEWHEEL_AMX inline void bfloat16_sums(const MatmulArgs& args, int64_t row, int64_t rows,
                                        int64_t column, int64_t columns, BFloat16* packed,
                                        float* sums, int64_t stride) {
  const BFloat16* a = static_cast<const BFloat16*>(args.a) + row * args.a_stride;
  const int64_t across = (columns + kPair - 1) / kPair * kPair;
  const bool tiles = choices().amx;
  const int64_t unit = tiles ? kTile : kDotRest;
  const int64_t down = (rows + unit - 1) / unit * unit;
  const int64_t most = args.transposed ? kTurnedDepth : kDepth;
  for (int64_t k = 0; k < args.k; k += most) {
    const int64_t depth = args.k - k < most ? args.k - k : most;
    const int64_t tile = whole_steps(depth) * kTile;
    const int64_t multiplied = tiles ? whole_steps(depth) : depth + depth % 2;
    if (args.transposed) {
      pack_bfloat16_columns(args.weight, column, columns, across, k, depth, packed);
      product(a + k, args.a_stride, down, {packed, tile}, across, multiplied, sums, stride, k > 0,
              next_steps(args, column, columns, k, depth));
      continue;
    }
    for (int64_t j = 0; j < across; j += kPair) {
      for (int64_t half = j; half < j + kPair; half += kTile) {
        pack_bfloat16_rows(args.weight, column + half, columns - half, k, depth,
                           packed + half / kTile * tile);
      }
      product(a + k, args.a_stride, down, {packed + j / kTile * tile, tile}, kPair, multiplied,
              sums + j, stride, k > 0,
              next_rows(args, kPair, column, column + j, column + columns, k, depth));
    }
  }
}

// The same with the tiles of AMX where it is used.
FUSEWHEEL_AMX inline void bfloat16_block(const MatmulArgs& args, int64_t row, int64_t rows,
                                         int64_t column, int64_t columns, BFloat16* packed,
                                         float* sums, int64_t stride) {
  if (choices().amx) {
    const Tiles tiles;
    return bfloat16_sums(args, row, rows, column, columns, packed, sums, stride);
  }
  bfloat16_sums(args, row, rows, column, columns, packed, sums, stride);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX512F__
