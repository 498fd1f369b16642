// Sums that overflowed although the result may not. Activations are summed, and multiplied with codes,
// before a scale comes: where those are large, the scaled numbers themselves are added up again.
#pragma once

#include "matmul.h"
#include "rounding.h"

namespace fusewheel::FUSEWHEEL_ISA {

FUSEWHEEL_INLINE bool all_finite(const float* sums, int64_t rows, int64_t columns, int64_t stride) {
  Vec<float> taint = {};
  for (int64_t row = 0; row < rows; ++row) {
    for_each_vector<float>(columns, [&](int64_t j, int64_t live) {
      taint += load(sums + row * stride + j, live) * 0.0f;
    });
  }
  return sum<float>(taint) == 0;
}

#if defined(__AVX2__)

// Row `row` of a, rounded to int8, times row `column` of 4-bit codes. It is NaN as soon as a block is.
FUSEWHEEL_INLINE float rounded_product(const MatmulArgs& args, int64_t row, int64_t column) {
  constexpr int64_t depth = 512;  // summed apart: the longer a sum, the more it rounds
  const float* a = static_cast<const float*>(args.a) + row * args.a_stride;
  float total = 0;
  for (int64_t k = 0; k < args.k && total == total; k += depth) {
    const int64_t end = args.k - k < depth ? args.k : k + depth;
    Vec<float> sums = {};
    for (int64_t block = k; block < end; block += kInt4Block) {
      const Rounding rounding = round_block(measure_block(a + block), 127);
      float numbers[kInt4Block];
      decode(args.weight, column, block, kInt4Block, numbers);
      for (int j = 0; j < kInt4Block; j += kLanes<float>) {
        const Integers code = nearest(load(a + block + j) * rounding.inverse);
        sums += from_codes(code) * splat(rounding.step) * load(numbers + j);
      }
    }
    total += sum<float>(sums);
  }
  return total;
}

// For rows [row, row + rows) of a and columns [column, column + columns) of y, what is not finite.
__attribute__((noinline)) inline void multiply_again(const MatmulArgs& args, int64_t row,
                                                     int64_t rows, int64_t column, int64_t columns,
                                                     float* sums, int64_t stride) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      float& own = sums[i * stride + j];
      own = __builtin_isfinite(own) ? own : rounded_product(args, row + i, column + j);
    }
  }
}

#else

FUSEWHEEL_INLINE void multiply_again(const MatmulArgs&, int64_t, int64_t, int64_t, int64_t, float*,
                                     int64_t) {}

#endif

}  // namespace fusewheel::FUSEWHEEL_ISA
