// y = a @ w^T + bias (or a @ w), the product behind every linear layer. The weight is read as it is
// stored, in any precision, and widened on the way to the registers; sums are float32 (float64 where
// y is). Nothing derived from a weight outlives a call, so nothing can go stale.
//
//   the rows of a, widened or rounded                           activations.h
//   one row of a    the weight streams past it                  one_row.h: streams.h, digits.h
//   2 to 11, rounded likewise, 4-bit codes                      one_row.h: digit_rows.h
//   few             dot products along the rows of the weight   rows.h
//   some, numbers   each row of a is a lane                     row_lanes.h, lane_tile.h
//   many            packed panels and a register tile           panel.h, tile.h, next_rows.h
//   many, bfloat16  likewise, by AMX or AVX512_BF16             bfloat16.h, bfloat16_tile.h, block_bfloat16.h
//   rounded         likewise, in integers                       integer.h (4-bit codes), int8.h;
//                                                               by AMX integer_amx.h, int8_amx.h
//   sums that overflow before they are scaled                   again.h
#pragma once

#include <fusewheel/linear/linear_args.h>

#include "activations.h"

namespace fusewheel {

// A task is this many columns of y: a whole number of panels and of vectors.
constexpr int64_t kUnit = 32;
// Rows of rounded activations for which a 4-bit code is taken apart once, where it streams past them;
// and how many of them do, at most: for more it pays to pack the codes.
constexpr int64_t kDigitRows = 4;
constexpr int64_t kMostDigitRows = 11;

// With fewer rows products of bfloat16 are not worth the packing: of a weight that is rounded first, and of
// one in bfloat16.
constexpr int64_t kFewestRoundedRows = 17;
constexpr int64_t kFewestBFloat16Rows = 5;

struct MatmulArgs {
  const void* a = nullptr;  // [m, k] in the accumulation type
  int64_t a_stride = 0;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  LinearWeight weight = {};  // [n, k], or [k, n] where transposed
  bool transposed = false;
  const void* bias = nullptr;  // [n] in the accumulation type, or none
  void* y = nullptr;           // [m, n], contiguous
  Dtype dtype = Dtype::kFloat32;  // of y
  bool dynamic = false;  // a is to be rounded to int8 and multiplied as integers
  RoundedRows rounded = {};  // a that was; no codes otherwise
  bool add = false;  // to what y holds
  // a is bfloat16 in whole_rows, and so is the weight once it is rounded.
  bool bfloat16 = false;
  // y is larger than the caches; it and its rows begin with a cache line.
  bool past_caches = false;
  // a is in tiles, as write_tiles makes them of the columns of a matrix.
  bool in_tiles = false;
};

// How the work divides into tasks, and what memory a thread needs for one.
struct MatmulPlan {
  int64_t tasks;
  int64_t scratch_bytes;
};

}  // namespace fusewheel

FUSEWHEEL_DECLARE(MatmulPlan matmul_plan(const MatmulArgs&));
FUSEWHEEL_DECLARE(void matmul_tasks(const MatmulArgs&, int64_t begin, int64_t end, void* scratch));
