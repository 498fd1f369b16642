// Panels of a weight: kPanel columns side by side, one element of each per step of k.
#pragma once

#include "simd/prefetch.h"
#include "simd/transpose.h"
#include "decode.h"
#include "tile.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Steps of k in a panel: with kPanel columns it fits the first-level cache.
constexpr int64_t kDepth = 384;
// The same where columns are columns of a weight whose rows are asked for. Rows may lie 4 KiB apart: then a
// second-level cache of 1 MiB with eight ways holds 256 of them, which are those that are packed and those that
// come next.
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

// Columns are columns of the weight: `panels` panels decoded row by row.
template <typename A>
void pack_columns(const LinearWeight& weight, int64_t column, int64_t live, int64_t panels,
                  int64_t k, int64_t depth, A* to) {
  A decoded[kStretch];
  for (int64_t i = live; i < panels * kPanel<A>; ++i) {
    decoded[i] = 0;
  }
  const bool in_place = has_numbers<A>(weight) && live == panels * kPanel<A>;
  for (int64_t step = 0; step < depth; ++step) {
    const A* row = decoded;
    if (in_place) {
      row = static_cast<const A*>(weight.data) + (k + step) * weight.stride + column;
      if (step + kStepsAhead < depth) {
        prefetch(row + kStepsAhead * weight.stride, 0, live * static_cast<int64_t>(sizeof(A)));
      }
    } else {
      decode(weight, k + step, column, live, decoded);
    }
    for (int64_t p = 0; p < panels; ++p) {
      A* panel = to + p * kDepth * kPanel<A> + step * kPanel<A>;
      for (int j = 0; j < kPanel<A>; j += kLanes<A>) {
        store(panel + j, load(row + p * kPanel<A> + j));
      }
    }
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
