// How a value lies in memory. Sizes, strides and the offset count elements.
#pragma once

#include <fusewheel/geometry.h>

#include <algorithm>
#include <stdexcept>

#include "numbers.h"

namespace fusewheel::engine {

struct Layout {
  int64_t rank;
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];
  int64_t offset;
  int64_t numel;

  int64_t last_size() const { return rank == 0 ? 1 : sizes[rank - 1]; }

  bool is_contiguous() const {
    int64_t expected = 1;
    for (int64_t i = rank; i-- > 0;) {
      if (sizes[i] != 1 && strides[i] != expected) {
        return false;
      }
      expected *= sizes[i];
    }
    return true;
  }

  bool has_shape_of(const Layout& other) const {
    return rank == other.rank && std::equal(sizes, sizes + rank, other.sizes);
  }
};

// How far the last element is from the first; -1 where there is no element.
inline int64_t reach(const Layout& layout) {
  int64_t last = 0;
  for (int64_t i = 0; i < layout.rank; ++i) {
    if (layout.sizes[i] < 0 || layout.strides[i] < 0) {
      throw std::runtime_error("run: a value of the program has a negative size or stride");
    }
    if (layout.sizes[i] == 0) {
      return -1;
    }
    last = calculate(Kind::kAdd, last,
                     calculate(Kind::kMultiply, layout.sizes[i] - 1, layout.strides[i]));
  }
  return last;
}

// The step between rows of contiguous elements; false where there is no such step, or no element.
inline bool find_stride(const Layout& x, int64_t& stride) {
  const int64_t size = x.last_size();
  if (x.rank == 0 || x.numel == 0 || (size > 1 && x.strides[x.rank - 1] != 1)) {
    return false;
  }
  stride = size;
  int64_t expected = -1;  // the stride that would continue the rows so far
  for (int64_t i = x.rank - 1; i-- > 0;) {
    if (x.sizes[i] == 1) {
      continue;
    }
    if (expected < 0) {
      stride = x.strides[i];
    } else if (x.strides[i] != expected) {
      return false;
    }
    expected = x.strides[i] * x.sizes[i];
  }
  return true;
}

}  // namespace fusewheel::engine
