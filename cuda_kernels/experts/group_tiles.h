// Which columns of which groups a launch of tiles computes.
#pragma once

#include "row_tiles.h"

namespace fusewheel {
namespace {

// What a launch computes: columns of y for some groups.
struct GroupTiles {
  GroupRange groups;
  int64_t step;       // from a group's weight to the next, in bytes; the weight is that of the first
  int64_t column;     // where they begin
  int64_t columns;    // that are computed
  int64_t y_columns;  // of all
  int64_t inner;
  // For tensor cores alone: the matrices of which a weight is the sum, and from one to the next, in bytes.
  int matrices = 1;
  int64_t matrix_step = 0;
};

}  // namespace
}  // namespace fusewheel
