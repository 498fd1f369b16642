// Panels of a weight: kPanel columns side by side, one element of each per step of k.
#pragma once

#include "simd/prefetch.h"
#include "simd/transpose.h"
#include "decode.h"
#include "tile.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Steps of k in a panel: with kPanel columns it fits the first-level cache.
constexpr int64_t kDepth = 384;
// The same where columns are columns of a weight: always in bfloat16.h, elsewhere where its rows are asked for
// (steps_together). Rows may lie 4 KiB apart: then a second-level cache of 1 MiB with eight ways holds 256 of
// them, which are those that are packed and those that come next.
constexpr int64_t kTurnedDepth = 128;

// Whether a weight is stored as the numbers that it is multiplied as.
template <typename A>
bool has_numbers(const LinearWeight& weight) {
  return weight.kind == WeightKind::kFloating &&
         weight.dtype == (sizeof(A) == sizeof(double) ? Dtype::kFloat64 : Dtype::kFloat32);
}

// Columns are rows of the weight: decoded along k, then turned. Columns past `live` are zeros.
template <typename A>
void pack_rows(const LinearWeight& weight, int64_t column, int64_t live, int64_t k, int64_t depth,
               A* panel) {
  constexpr int lanes = kLanes<A>;
  A decoded[lanes][kDepth];
  const A* rows[lanes];
  for (int half = 0; half < kPanel<A>; half += lanes) {
    for (int lane = 0; lane < lanes; ++lane) {
      const int64_t row = column + half + lane;
      rows[lane] = decoded[lane];
      if (half + lane >= live) {
        __builtin_memset(decoded[lane], 0, sizeof(decoded[lane]));
      } else if (has_numbers<A>(weight)) {
        rows[lane] = static_cast<const A*>(weight.data) + row * weight.stride + k;
      } else {
        decode(weight, row, k, depth, decoded[lane]);
      }
    }
    A* to = panel + half;
    int64_t i = 0;
    for (; i + lanes <= depth; i += lanes) {
      Vec<A> block[lanes];
      for (int lane = 0; lane < lanes; ++lane) {
        block[lane] = load(rows[lane] + i);
      }
      transpose<A>(block);
      for (int lane = 0; lane < lanes; ++lane) {
        store(to + (i + lane) * kPanel<A>, block[lane]);
      }
    }
    for (; i < depth; ++i) {
      for (int lane = 0; lane < lanes; ++lane) {
        to[i * kPanel<A> + lane] = rows[lane][i];
      }
    }
  }
}

// Rows of a weight are asked for so many before they are packed.
constexpr int64_t kStepsAhead = 8;

// A row of numbers, widened, becomes step `step` of panels.
template <typename A, typename W>
FUSEWHEEL_INLINE void pack_step(const W* row, int64_t panels, int64_t step, A* to) {
  for (int64_t p = 0; p < panels; ++p) {
    A* panel = to + p * kDepth * kPanel<A> + step * kPanel<A>;
    for (int j = 0; j < kPanel<A>; j += kLanes<A>) {
      store(panel + j, load(row + p * kPanel<A> + j));
    }
  }
}

// Whether a weight is stored as numbers that are widened vector by vector.
template <typename A>
bool is_widened(const LinearWeight& weight) {
  return weight.kind == WeightKind::kFloating &&
         (weight.dtype == Dtype::kFloat64) == (sizeof(A) == sizeof(double));
}

// Columns are columns of the weight: `panels` panels, row by row.
template <typename A>
void pack_columns(const LinearWeight& weight, int64_t column, int64_t live, int64_t panels,
                  int64_t k, int64_t depth, A* to) {
  if (is_widened<A>(weight) && live == panels * kPanel<A>) {
    return for_dtype(weight.dtype, [&](auto zero) {
      using W = decltype(zero);
      if constexpr (sizeof(Accumulate<W>) == sizeof(A)) {
        const W* row = static_cast<const W*>(weight.data) + k * weight.stride + column;
        for (int64_t step = 0; step < depth; ++step, row += weight.stride) {
          if (step + kStepsAhead < depth) {
            prefetch(row + kStepsAhead * weight.stride, 0, live * static_cast<int64_t>(sizeof(W)));
          }
          pack_step(row, panels, step, to);
        }
      }
    });
  }
  A decoded[kStretch];
  for (int64_t i = live; i < panels * kPanel<A>; ++i) {
    decoded[i] = 0;
  }
  for (int64_t step = 0; step < depth; ++step) {
    decode(weight, k + step, column, live, decoded);
    pack_step<A, A>(decoded, panels, step, to);
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
