// How rows of a divide into register tiles.
#pragma once

#include "streams.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Calls tile(how many together, first row) once for `rows` rows, which are `most` or fewer.
template <int most, typename Tile>
FUSEWHEEL_INLINE void at_once(int64_t rows, int64_t first, const Tile& tile) {
  if constexpr (most > 0) {
    if (rows == most) {
      return tile(Constant<most>{}, first);
    }
    at_once<most - 1>(rows, first, tile);
  }
}

// Calls tile(how many together, first row) for all of `rows` rows: for `most` of them at a time, then for those
// that are left. One by one they would take about as long as a tile each.
template <int most, typename Tile>
FUSEWHEEL_INLINE void by_tiles(int64_t rows, const Tile& tile) {
  int64_t row = 0;
  for (; row + most <= rows; row += most) {
    tile(Constant<most>{}, row);
  }
  at_once<most - 1>(rows - row, row, tile);
}

}  // namespace fusewheel::FUSEWHEEL_ISA
