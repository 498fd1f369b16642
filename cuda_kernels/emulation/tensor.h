// Tensor cores and asynchronous copies, emulated.
#pragma once

#include "fibers.h"

#include <cstring>

namespace fusewheel::emulation {

// A lane's part of a product: see multiply_add_tiles in common/mma.h.
struct TilePart {
  uint32_t a[4];
  uint32_t b[2];
  float* sums;
  bool is_bfloat16;
};

// The last lane of the warp to come computes all: exact products, added up in float64 and rounded once.
void multiply_add_tiles(TilePart part);

// A lane's part of loading four matrices: the row that it brings, and what it gets.
struct MatrixPart {
  unsigned __int128 row;
  uint32_t* to;
  bool transposed;
};

void exchange_matrices(MatrixPart part);

// The row is read by the lane that brings it, in one access; banks serve eight lanes at a time, and so
// the rows of one matrix, as on a GPU.
inline void load_matrices(const void* row, bool transposed, uint32_t (&to)[4]) {
  exchange_matrices({*static_cast<const unsigned __int128*>(row), to, transposed});
}

inline uint32_t pair_of(uint16_t low, uint16_t high) {
  return low | static_cast<uint32_t>(high) << 16;
}

// The memory is NaN from here on until the thread has waited for the copy: whoever reads or writes it
// in between is wrong, however long a GPU would take.
inline void copy_async(void* shared, const void* global, bool exists) {
  unsigned __int128 bytes = 0;  // one access
  if (exists) {
    bytes = *static_cast<const unsigned __int128*>(global);
  }
  *static_cast<unsigned __int128*>(shared) = ~static_cast<unsigned __int128>(0);
  block.copies().begin(block.linear_index(), shared, &bytes);
}

}  // namespace fusewheel::emulation
