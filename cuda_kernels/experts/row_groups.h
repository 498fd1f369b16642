// Which group a row is in. Nobody has checked the ends: they are held between 0 and the rows there are.
#pragma once

#include <fusewheel/experts/groups.h>

#include "common/launch.h"

namespace fusewheel {

constexpr int kProductWarps = 4;  // of a block

__device__ inline int64_t end_of(const GroupEnds& ends, int64_t group) {
  if (ends.data == nullptr) {
    return ends.rows;
  }
  const int64_t at = group * ends.stride;
  const int64_t end = ends.is_long ? static_cast<const int64_t*>(ends.data)[at]
                                   : static_cast<const int32_t*>(ends.data)[at];
  return end < 0 ? 0 : end > ends.rows ? ends.rows : end;
}

// The first group that ends after the row; as many as there are if none does.
__device__ inline int64_t group_of(const GroupEnds& ends, int64_t row) {
  int64_t group = 0;
  while (group < ends.count && end_of(ends, group) <= row) {
    ++group;
  }
  return group;
}

inline dim3 product_block() { return dim3(kWarp, kProductWarps); }

}  // namespace fusewheel
