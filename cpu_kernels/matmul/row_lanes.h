// Some rows of a, each in a lane of its own: numbers of the weight multiply all of them where they are stored.
// Nothing of the weight is packed, which for so few rows takes about as long as the products.
#pragma once

#include "simd/prefetch.h"
#include "simd/transpose.h"
#include "bfloat16_rows.h"
#include "dtype.h"
#include "lane_tile.h"
#include "matmul.h"
#include "panel.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Rows of a that are multiplied this way. With more, packing the weight is a small part of the work: with
// AVX2, where a tile has fewer sums than two of AVX-512, that is so from four bunches on.
constexpr int64_t kFewestLaneRows = 5;
constexpr int64_t kMostLaneRows = kBytes == 64 ? 64 : 24;
// Steps that are summed apart from those before: the longer a sum, the more it rounds.
constexpr int64_t kLaneDepth = 128;
// What is packed of a stays in the second-level cache.
constexpr int64_t kLaneBytes = (kBytes == 64 ? 512 : 256) << 10;
// Columns of y that are multiplied by it before the next steps of a are packed, if it is not all.
constexpr int64_t kLaneGroup = 4 * kUnit;
constexpr int64_t kLaneScratch =
    kLaneBytes + kLaneGroup * kMostLaneRows * static_cast<int64_t>(sizeof(float));

FUSEWHEEL_INLINE bool has_row_lanes(const MatmulArgs& args) {
  const bool pairs = args.k % 2 == 0 && args.weight.stride % 2 == 0 && args.a_stride % 2 == 0;
  const bool numbers = args.bfloat16 ? is_bfloat16(args.weight) && pairs && !choices().amx
                                     : has_numbers<float>(args.weight);
  return kBytes > 16 && numbers && !args.transposed && args.m >= kFewestLaneRows &&
         args.m <= kMostLaneRows && args.k > 0 && args.dtype != Dtype::kFloat64;
}

// Whole bunches: those behind the last row are zeros.
FUSEWHEEL_INLINE int64_t lanes_of(const MatmulArgs& args) {
  return (args.m + kBunch - 1) / kBunch * kBunch;
}

// Steps [k, k + depth) of all rows of a: those of a step side by side.
FUSEWHEEL_INLINE void pack_row_lanes(const MatmulArgs& args, int64_t k, int64_t depth, float* to) {
  constexpr int width = kLanes<float>;
  const int64_t lanes = lanes_of(args);
  const int64_t stride = args.bfloat16 ? args.a_stride / 2 : args.a_stride;
  const float* a = static_cast<const float*>(args.a) + k;
  for (int64_t row = 0; row < lanes; row += width) {
    const int64_t own = lanes - row < width ? lanes - row : width;
    for (int64_t i = 0; i < depth; i += width) {
      const int64_t live = depth - i < width ? depth - i : width;
      Vec<float> block[width];
      for (int lane = 0; lane < width; ++lane) {
        block[lane] = row + lane < args.m ? load(a + (row + lane) * stride + i, live) : Vec<float>{};
      }
      transpose<float>(block);
      for (int64_t lane = 0; lane < live; ++lane) {
        store(to + (i + lane) * lanes + row, block[lane], own);
      }
    }
  }
}

// Adds so many steps of columns of y to sums [columns, lanes].
template <typename Number>
FUSEWHEEL_INLINE void lane_columns(const LaneTask& task, int64_t columns) {
  for (int64_t j = 0; j < columns; j += kLaneColumns) {
    const bool whole = j + kLaneColumns <= columns;
    for (int64_t i = 0; i < task.depth; i += kLaneDepth) {
      LaneTask own = task.at(j, 0);
      own.w += i;
      own.a += i * task.lanes;
      own.depth = task.depth - i < kLaneDepth ? task.depth - i : kLaneDepth;
      own.first = task.first && i == 0;
      own.ahead = j + 2 * kLaneColumns <= columns ? kLaneColumns * task.w_stride : 0;
      if (whole) {
        lane_tiles<Number, kLaneColumns>(own);
        continue;
      }
      for (int64_t c = j; c < columns; ++c) {
        lane_tiles<Number, 1>(own.at(c - j, 0));
      }
    }
  }
}

// A unit of sums [kUnit, lanes], turned.
FUSEWHEEL_INLINE void turn_lanes(const float* sums, int64_t lanes, int64_t rows, float* to) {
  constexpr int width = kLanes<float>;
  for (int64_t row = 0; row < rows; row += width) {
    const int64_t own = lanes - row < width ? lanes - row : width;
    for (int64_t column = 0; column < kUnit; column += width) {
      Vec<float> block[width];
      for (int i = 0; i < width; ++i) {
        block[i] = load(sums + (column + i) * lanes + row, own);
      }
      transpose<float>(block);
      for (int i = 0; i < width && row + i < rows; ++i) {
        store(to + (row + i) * kUnit + column, block[i]);
      }
    }
  }
}

// Columns [begin, end) of y; finish(sums, column, columns) rounds and stores a unit.
template <typename Finish>
FUSEWHEEL_INLINE void row_lanes(const MatmulArgs& args, int64_t begin, int64_t end, float* packed,
                                const Finish& finish) {
  const int64_t lanes = lanes_of(args);
  const int64_t steps = args.bfloat16 ? args.k / 2 : args.k;
  const int64_t stride = args.bfloat16 ? args.weight.stride / 2 : args.weight.stride;
  const int64_t most = kLaneBytes / static_cast<int64_t>(sizeof(float)) / lanes;
  float* sums = packed + kLaneBytes / static_cast<int64_t>(sizeof(float));
  bool is_packed = false;
  for (int64_t column = begin; column < end; column += kLaneGroup) {
    const int64_t columns = end - column < kLaneGroup ? end - column : kLaneGroup;
    const float* w = static_cast<const float*>(args.weight.data) + column * stride;
    for (int64_t k = 0; k < steps; k += most) {
      const int64_t depth = steps - k < most ? steps - k : most;
      if (!is_packed) {
        pack_row_lanes(args, k, depth, packed);
        is_packed = depth == steps;
      }
      const LaneTask task{w + k, stride, packed, lanes, depth, sums, k == 0, 0};
      if (args.bfloat16) {
        lane_columns<NeighbourPair>(task, columns);
      } else {
        lane_columns<float>(task, columns);
      }
    }
    for (int64_t j = 0; j < columns; j += kUnit) {
      float turned[kMostLaneRows * kUnit];
      turn_lanes(sums + j * lanes, lanes, args.m, turned);
      finish(turned, column + j, columns - j < kUnit ? columns - j : kUnit);
    }
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
