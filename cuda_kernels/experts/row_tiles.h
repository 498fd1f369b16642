// The rows of all groups in tiles, each of one group.
#pragma once

#include "common/reduce.h"
#include "row_groups.h"

namespace fusewheel {
namespace {

// Up to kRows neighbours of one group; of none if that is the number of groups.
struct RowTile {
  int64_t group;
  int64_t begin;
  int64_t end;
};

// Groups in their order; behind the last of all, those rows that are in none.
struct GroupRange {
  int64_t first;
  int64_t last;

  // At most so many tiles have rows.
  int64_t tiles(const GroupEnds& ends, int64_t rows) const {
    return ends.rows / rows + last - first + 1;
  }
};

// Tile `tile` of `rows` rows. All lanes of a warp must call it; they look at a group each. Where ends
// fall, groups begin at the largest end before, so that tiles do not overlap.
__device__ inline RowTile row_tile(const GroupEnds& ends, const GroupRange& groups, int64_t tile,
                                   int rows) {
  const int lane = threadIdx.x;
  const int64_t last_of_all = groups.last == ends.count ? ends.count : groups.last - 1;
  int64_t before = 0;  // tiles
  int64_t covered = groups.first == 0 ? 0 : end_of(ends, groups.first - 1);
  for (int64_t base = groups.first; base <= last_of_all; base += kWarp) {
    const int64_t group = base + lane;
    int64_t end = group < ends.count ? end_of(ends, group) : ends.rows;
    end = end > covered ? end : covered;
#pragma unroll 1
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int64_t other = __shfl_sync(0xffffffffu, end, (lane - distance) & (kWarp - 1));
      end = lane >= distance && other > end ? other : end;
    }
    const int64_t last = __shfl_sync(0xffffffffu, end, (lane - 1) & (kWarp - 1));
    const int64_t begin = lane == 0 ? covered : last;
    const int64_t own = group <= last_of_all ? (end - begin + rows - 1) / rows : 0;
    int64_t upto = own;
#pragma unroll 1
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int64_t other = __shfl_sync(0xffffffffu, upto, (lane - distance) & (kWarp - 1));
      upto += lane >= distance ? other : 0;
    }
    upto += before;
    const int found = warp_reduce<Larger>(upto - own <= tile && tile < upto ? lane : -1);
    if (found >= 0) {
      const int64_t first = begin + (tile - (upto - own)) * rows;
      const int64_t from = __shfl_sync(0xffffffffu, first, found);
      const int64_t to = __shfl_sync(0xffffffffu, end, found);
      return {base + found, from, from + rows < to ? from + rows : to};
    }
    covered = __shfl_sync(0xffffffffu, end, kWarp - 1);
    before = __shfl_sync(0xffffffffu, upto, kWarp - 1);
  }
  return {ends.count, 0, 0};
}

}  // namespace
}  // namespace fusewheel
