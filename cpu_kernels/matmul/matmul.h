// y = a @ w^T + bias (or a @ w), the product behind every linear layer. The weight is read as it is
// stored, in any precision, and widened on the way to the registers; sums are float32 (float64 where
// y is). Nothing derived from a weight outlives a call, so nothing can go stale.
//
//   few rows of a   dot products along the rows of the weight   rows.h, codes.h
//   many            packed panels and a register tile           panel.h, tile.h
#pragma once

#include <fusewheel/linear.h>

#include "../isa.h"

namespace fusewheel {

struct MatmulArgs {
  const void* a;  // [m, k] in the accumulation type
  int64_t a_stride;
  int64_t m;
  int64_t n;
  int64_t k;
  LinearWeight weight;  // [n, k], or [k, n] where transposed
  bool transposed;
  const void* bias;  // [n] in the accumulation type, or none
  void* y;           // [m, n], contiguous
  Dtype dtype;       // of y
};

// How the work divides into tasks, and what memory a thread needs for one.
struct MatmulPlan {
  int64_t tasks;
  int64_t scratch_bytes;
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
  bool wide;  // float64
};

// Rows of float32 rounded to 255 steps per group: step = max |a| / 127.
struct RoundArgs {
  const float* from;
  int64_t stride;
  int64_t columns;
  int64_t group_size;
  float* to;  // contiguous
};

}  // namespace fusewheel

FUSEWHEEL_DECLARE(MatmulPlan matmul_plan(const MatmulArgs&));
FUSEWHEEL_DECLARE(void matmul_tasks(const MatmulArgs&, int64_t begin, int64_t end, void* scratch));
FUSEWHEEL_DECLARE(void widen_rows(const WidenArgs&, int64_t begin, int64_t end));
FUSEWHEEL_DECLARE(void round_rows(const RoundArgs&, int64_t begin, int64_t end));

#if FUSEWHEEL_GLUE

namespace fusewheel {

// x [rows] @ weight^T + bias -> y, on all threads. With a `group_size`, x is rounded to int8 by
// groups of that many (float64 never is).
void matmul(const Rows& x, const LinearWeight& weight, const std::optional<Tensor>& bias, Tensor& y,
            int64_t group_size = 0);

// grad [rows] @ weight -> y
void matmul_transposed(const Rows& grad, const LinearWeight& weight, Tensor& y);

// grad^T [columns of grad, rows] @ x [rows, columns of x] -> y
void matmul_gradient(const Rows& grad, const Rows& x, Tensor& y);

}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
