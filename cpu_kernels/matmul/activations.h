// The rows that a weight is multiplied with, as the products want them: widened, or rounded.
#pragma once

#include <fusewheel/linear/linear_args.h>

#include "isa.h"

namespace fusewheel {

// Rows of activations as whole numbers of the steps of their groups, each of `padded` codes, the last
// ones zeros. For 4-bit codes that are blocks of kInt4Block.
struct RoundedRows {
  const int8_t* codes;     // [m, groups, padded], `stride` from row to row
  const float* steps;      // [m, groups]
  const float* sums;       // likewise, for 4-bit codes: of the rounded activations
  const int32_t* offsets;  // likewise, for 8-bit codes: 128 times the sum of the codes
  int64_t stride;
  int64_t groups;
  int64_t padded;
  // Codes, and the stride, are of 16 bits, and of every four codes the second and the third are exchanged:
  // int8_words.h.
  bool are_words;
};

// Rows of a matrix in any floating dtype, as those of the accumulation type.
struct WidenArgs {
  const void* from;
  Dtype dtype;
  int64_t stride;
  int64_t columns;
  bool transposed;  // `to` is [columns, rows] then
  int64_t rows;
  void* to;
  int64_t to_stride;
  bool wide;  // float64
};

// Columns of a matrix become rows of the accumulation type in tiles: as many rows side by side as the register
// tile has, one number of each for each step. Row i begins at i * to_stride where it is the first of a tile.
struct TilesArgs {
  const void* from;
  Dtype dtype;
  int64_t stride;
  int64_t columns;
  int64_t rows;
  void* to;  // rows of whole tiles, up to a multiple of kWholeTiles
  int64_t to_stride;
  bool wide;  // float64
};

// A register tile has so many rows at most, or a part of them.
constexpr int64_t kWholeTiles = 12;
// Columns that are written together: their tiles are not too many streams.
constexpr int64_t kTilesStrip = 8 * kWholeTiles;

// Rows of 16-bit numbers turned: `to` has a row for each of their columns, with zeros behind its numbers.
struct TurnArgs {
  const void* from;
  int64_t stride;
  int64_t rows;
  void* to;
  int64_t to_stride;
  int64_t to_columns;  // at least `rows`
};

// Rows of float32 rounded to 255 steps per group: step = max |a| / 127.
struct RoundRowsArgs {
  const float* from;
  int64_t stride;
  int64_t columns;
  int64_t group_size;
  float* to;  // contiguous
};

// Likewise as integers, to the memory of `rows`.
struct CodeArgs {
  const float* from;
  int64_t stride;
  int64_t group_size;
  RoundedRows rows;
  int8_t* codes;
  float* steps;
  float* sums;
  int32_t* offsets;
};

}  // namespace fusewheel

FUSEWHEEL_DECLARE(void widen_rows(const WidenArgs&, int64_t begin, int64_t end));
// Strips [begin, end) of kTilesStrip columns.
FUSEWHEEL_DECLARE(void write_tiles(const TilesArgs&, int64_t begin, int64_t end));
FUSEWHEEL_DECLARE(void turn_rows(const TurnArgs&, int64_t begin, int64_t end));
FUSEWHEEL_DECLARE(void round_rows(const RoundRowsArgs&, int64_t begin, int64_t end));
// Whether integers are multiplied for such a weight and so many rows; where not, rounded activations stay
// floats.
FUSEWHEEL_DECLARE(bool has_integer_products(const LinearWeight&, int64_t rows));
// By blocks of kInt4Block, with their sums; by the groups of 8-bit codes, with their offsets.
FUSEWHEEL_DECLARE(void code_blocks(const CodeArgs&, int64_t begin, int64_t end));
FUSEWHEEL_DECLARE(void code_groups(const CodeArgs&, int64_t begin, int64_t end));
