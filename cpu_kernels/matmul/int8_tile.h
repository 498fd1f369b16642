// The products of rounded activations and packed 8-bit codes, in integers, a tile of registers at a time.
//
// `By` says what a lane has of a column, and how it is multiplied: Quads (int8.h) or Words (int8_words.h).
#pragma once

#include "int8_pack.h"
#include "row_tiles.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// Rows of a in a tile: its sums, the codes of two panels, a factor and a product fill the registers.
constexpr int kByteRows = 6;

// Codes that a lane multiplies at a time.
template <typename By>
constexpr int kTogetherBy = sizeof(int32_t) / sizeof(typename By::Code);

// `rows` rows of a times two panels, each `depth` vectors deep.
template <typename By, int rows>
__attribute__((noinline)) void int8_tile(const typename By::Code* a, int64_t a_stride,
                                         const typename By::Codes* panel, int64_t depth,
                                         int32_t* products, bool accumulate) {
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
  for (int64_t i = 0; i < depth; ++i) {
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const auto factor = By::repeat(a + r * a_stride + kTogetherBy<By> * i);
#pragma GCC unroll 2
      for (int v = 0; v < kByteVectors; ++v) {
        By::add(sums[r][v], panel[v * depth + i], factor);
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

// All panels of a unit, `columns` codes deep.
template <typename By>
void int8_product(const typename By::Code* a, int64_t a_stride, int64_t rows,
                  const typename By::Codes* codes, int64_t columns, int32_t* products,
                  bool accumulate) {
  const int64_t depth = columns / kTogetherBy<By>;
  for (int64_t panel = 0; panel < kBytePanels; panel += kByteVectors) {
    const auto* own = codes + panel * depth;
    int32_t* to = products + panel * kByteLanes;
    by_tiles<kByteRows>(rows, [&](auto together, int64_t i) {
      int8_tile<By, decltype(together)::value>(a + i * a_stride, a_stride, own, depth,
                                               to + i * kUnit, accumulate);
    });
  }
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
