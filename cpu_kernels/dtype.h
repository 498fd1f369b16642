// How many bytes a number takes.
#pragma once

#include "isa.h"

namespace fusewheel {

FUSEWHEEL_INLINE int64_t bytes_of(Dtype dtype) {
  return dtype == Dtype::kFloat64 ? 8 : dtype == Dtype::kFloat32 ? 4 : 2;
}

}  // namespace fusewheel
