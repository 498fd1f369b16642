// Activations rounded to int8 against 8-bit codes where there is no VNNI: both are words of 16 bits, of which
// one instruction multiplies 16 and adds the products by pairs, and another adds these sums. Products of
// floats take four instructions for as many.
#pragma once

#include "int8_pack.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// Rows of a in a tile: its sums, the codes of two panels, a factor and a product fill the registers.
constexpr int kWordRows = 6;
// Codes of a column that are packed at a time, at most: as many bytes as for VNNI.
constexpr int64_t kWordDepth = kByteDepth / 2;

// Four codes of each column as two pairs: the first and the third, the second and the fourth.
FUSEWHEEL_INLINE void widen_quad(Bytes quad, Shorts* to) {
  const Shorts pairs = bit_cast<Shorts>(quad);
  to[0] = pairs << 8 >> 8;
  to[1] = pairs >> 8;
}

FUSEWHEEL_INLINE Integers multiply_words(Shorts a, Shorts b) {
#if defined(__AVX512F__)
  return bit_cast<Integers>(_mm512_madd_epi16(bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#else
  return bit_cast<Integers>(_mm256_madd_epi16(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
#endif
}

// Two neighbouring words in every lane.
FUSEWHEEL_INLINE Shorts repeat_two(const int16_t* from) {
  int32_t two;
  __builtin_memcpy(&two, from, sizeof(two));
  return bit_cast<Shorts>(two - Integers{});
}

// `rows` rows of a times two panels.
template <int rows>
__attribute__((noinline)) void word_tile(const int16_t* a, int64_t a_stride, const Shorts* panel,
                                         int64_t pairs, int32_t* products, bool accumulate) {
  Integers sums[rows][kByteVectors];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kByteVectors; ++v) {
      sums[r][v] = Integers{};
      if (accumulate) {
        __builtin_memcpy(&sums[r][v], products + r * kUnit + v * kByteLanes, sizeof(Integers));
      }
    }
  }
  for (int64_t p = 0; p < pairs; ++p) {
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const Shorts factor = repeat_two(a + r * a_stride + 2 * p);
#pragma GCC unroll 2
      for (int v = 0; v < kByteVectors; ++v) {
        sums[r][v] += multiply_words(panel[v * pairs + p], factor);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kByteVectors; ++v) {
      __builtin_memcpy(products + r * kUnit + v * kByteLanes, &sums[r][v], sizeof(Integers));
    }
  }
}

// A tile with fewer rows: the last of a block.
template <int rows = kWordRows - 1, typename... Arguments>
FUSEWHEEL_INLINE void short_word_tile(int64_t live, Arguments... arguments) {
  if constexpr (rows > 0) {
    if (live == rows) {
      return word_tile<rows>(arguments...);
    }
    short_word_tile<rows - 1>(live, arguments...);
  }
}

// All panels of a unit.
inline void word_product(const int16_t* a, int64_t a_stride, int64_t rows, const Shorts* codes,
                         int64_t depth, int32_t* products, bool accumulate) {
  const int64_t pairs = depth / 2;
  for (int64_t panel = 0; panel < kBytePanels; panel += kByteVectors) {
    const Shorts* own = codes + panel * pairs;
    int32_t* to = products + panel * kByteLanes;
    int64_t i = 0;
    for (; i + kWordRows <= rows; i += kWordRows) {
      word_tile<kWordRows>(a + i * a_stride, a_stride, own, pairs, to + i * kUnit, accumulate);
    }
    short_word_tile(rows - i, a + i * a_stride, a_stride, own, pairs, to + i * kUnit, accumulate);
  }
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
