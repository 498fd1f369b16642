// Division by a number known before the launch: a multiplication, where the GPU would otherwise
// call a routine for 64 bits.
#pragma once

#include "device.h"

namespace fusewheel {

// n / divisor for 0 <= n < 2^63: (n + high(n * multiplier)) >> shift, with multiplier the part
// below 2^64 of 2^(64 + shift) / divisor, rounded up (Granlund and Montgomery, 1994).
struct Divisor {
  uint64_t divisor;
  uint64_t multiplier;
  int shift;

  Divisor() = default;
  explicit Divisor(int64_t value) : divisor(static_cast<uint64_t>(value)), shift(0) {
    while ((uint64_t{1} << shift) < divisor) {
      ++shift;
    }
    const uint64_t rest = (uint64_t{1} << shift) - divisor;
    multiplier = static_cast<uint64_t>((static_cast<unsigned __int128>(rest) << 64) / divisor) + 1;
  }

  __device__ uint64_t divide(uint64_t n) const { return (n + __umul64hi(n, multiplier)) >> shift; }
};

}  // namespace fusewheel
