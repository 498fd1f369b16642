// Activations rounded to int8 against 8-bit codes where there is no VNNI: both are words of 16 bits, of which
// one instruction multiplies 16 and adds the products by pairs, and another adds these sums. Products of
// floats take four instructions for as many.
#pragma once

#include "int8_pack.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// Codes of a column that are packed at a time, at most: as many bytes as for VNNI.
constexpr int64_t kWordDepth = kByteDepth / 2;

// Four codes of each column as two pairs: the first and the third, the second and the fourth.
FUSEWHEEL_INLINE void widen_quad(Bytes quad, Shorts* to) {
  const Shorts pairs = bit_cast<Shorts>(quad);
  to[0] = pairs << 8 >> 8;
  to[1] = pairs >> 8;
}

// Two codes of a column in a lane.
struct Words {
  using Code = int16_t;
  using Codes = Shorts;

  FUSEWHEEL_INLINE static Shorts repeat(const int16_t* from) {
    int32_t two;
    __builtin_memcpy(&two, from, sizeof(two));
    return bit_cast<Shorts>(two - Integers{});
  }
  FUSEWHEEL_INLINE static void add(Integers& sum, Shorts codes, Shorts factor) {
    sum += multiply_words(codes, factor);
  }
};

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
