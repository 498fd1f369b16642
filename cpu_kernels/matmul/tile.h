// The register tile: kTileRows rows of a times kPanel columns of b.
//
// Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS Functionality" (2015):
// the panel streams from the first-level cache, the tile's sums stay in registers.
#pragma once

#include "simd/vec.h"

namespace fusewheel::FUSEWHEEL_ISA {

constexpr int kTileRows = kBytes == 64 ? 12 : 6;
constexpr int kTileVectors = 2;
template <typename A>
constexpr int kPanel = kTileVectors * kLanes<A>;

// Steps of k that are summed in registers: the longer a sum, the more it rounds.
constexpr int64_t kTileDepth = 128;
// Steps of k that the loop takes at a time. On a Zen 3 two were 5 % to 12 % faster than one, and four were
// not.
constexpr int kTileSteps = kBytes == 32 ? 2 : 1;

struct Nothing {
  FUSEWHEEL_INLINE void operator()(int64_t) const {}
};

// Rows of a and of b lie a stride apart. With depth_major a row of a has one element of every row of c.
// Calls each(k) in step with the products.
template <typename A, int rows, bool depth_major = false, typename Each = Nothing>
FUSEWHEEL_INLINE void tile(const A* a, int64_t a_stride, const A* b, int64_t b_stride, int64_t depth,
                           A* c, int64_t c_stride, bool accumulate, const Each& each = {}) {
  for (int64_t begin = 0; begin < depth; begin += kTileDepth) {
    const int64_t end = begin + kTileDepth < depth ? begin + kTileDepth : depth;
    Vec<A> sums[rows][kTileVectors] = {};
#pragma GCC unroll kTileSteps
    for (int64_t k = begin; k < end; ++k) {
      each(k);
      Vec<A> columns[kTileVectors];
#pragma GCC unroll 2
      for (int j = 0; j < kTileVectors; ++j) {
        columns[j] = load(b + k * b_stride + j * kLanes<A>);
      }
#pragma GCC unroll 12
      for (int i = 0; i < rows; ++i) {
        const Vec<A> factor = splat(depth_major ? a[k * a_stride + i] : a[i * a_stride + k]);
#pragma GCC unroll 2
        for (int j = 0; j < kTileVectors; ++j) {
          sums[i][j] = fma(factor, columns[j], sums[i][j]);
        }
      }
    }
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < kTileVectors; ++j) {
        A* to = c + i * c_stride + j * kLanes<A>;
        store(to, accumulate || begin > 0 ? load(to) + sums[i][j] : sums[i][j]);
      }
    }
  }
}

// The same with a packed panel: its rows are kPanel columns long. With in_tiles, a is one tile: step k of
// all kTileRows rows, then the next step.
template <typename A, int rows, bool in_tiles, typename Each = Nothing>
FUSEWHEEL_INLINE void panel_tile(const A* a, int64_t a_stride, const A* panel, int64_t depth, A* c,
                                 int64_t c_stride, bool accumulate, const Each& each = {}) {
  tile<A, rows, in_tiles>(a, in_tiles ? kTileRows : a_stride, panel, kPanel<A>, depth, c, c_stride,
                          accumulate, each);
}

// A tile with fewer rows: the last of a block.
template <typename A, bool in_tiles, int rows = kTileRows - 1, typename Each>
FUSEWHEEL_INLINE void short_tile(int64_t live, const A* a, int64_t a_stride, const A* panel,
                                 int64_t depth, A* c, int64_t c_stride, bool accumulate,
                                 const Each& each) {
  if constexpr (rows > 0) {
    if (live == rows) {
      return panel_tile<A, rows, in_tiles>(a, a_stride, panel, depth, c, c_stride, accumulate, each);
    }
    short_tile<A, in_tiles, rows - 1>(live, a, a_stride, panel, depth, c, c_stride, accumulate, each);
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
