// Sums that are not finite although the result may be. Activations are summed, and multiplied with codes,
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

// How many elements of a row of a share a step, where it is to be rounded; all of them otherwise.
FUSEWHEEL_INLINE int64_t rounded_together(const MatmulArgs& args) {
  return !args.dynamic ? args.k
         : args.weight.kind == WeightKind::kInt4 ? kInt4Block
                                                 : args.weight.group_size;
}

FUSEWHEEL_INLINE Vec<float> round_to(Vec<float> value, [[maybe_unused]] const Rounding& rounding) {
#if defined(__AVX2__)
  return from_codes(nearest(value * rounding.inverse)) * splat(rounding.step);
#else
  return value;  // there are no products of integers
#endif
}

// Row `row` of a times row `column` of the weight. It is NaN as soon as a part is.
FUSEWHEEL_INLINE float product_again(const MatmulArgs& args, int64_t row, int64_t column) {
  constexpr int64_t depth = 512;  // summed apart: the longer a sum, the more it rounds
  const float* a = static_cast<const float*>(args.a) + row * args.a_stride;
  const int64_t together = rounded_together(args);
  Rounding rounding = {};
  float total = 0;
  for (int64_t k = 0; k < args.k && total == total; k += depth) {
    const int64_t count = args.k - k < depth ? args.k - k : depth;
    float numbers[depth];
    decode(args.weight, column, k, count, numbers);
    Vec<float> sums = {};
    for (int64_t i = 0; i < count;) {
      const int64_t begun = (k + i) % together;
      if (begun == 0) {
        rounding = round_block(measure_group(a + k + i, together), 127);
      }
      const int64_t size = together - begun < count - i ? together - begun : count - i;
      for_each_vector<float>(size, [&](int64_t j, int64_t live) {
        const Vec<float> value = load(a + k + i + j, live);
        sums += (args.dynamic ? round_to(value, rounding) : value) * load(numbers + i + j, live);
      });
      i += size;
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
      own = __builtin_isfinite(own) ? own : product_again(args, row + i, column + j);
    }
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
