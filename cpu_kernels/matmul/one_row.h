// One row of a, as in generating text: which of the streaming products a weight takes.
#pragma once

#include "digits.h"
#include "matmul.h"
#include "streams.h"

namespace fusewheel::FUSEWHEEL_ISA {

template <int number>
struct Constant {
  static constexpr int value = number;
};

// Memory for scales and zeros of some rows of the weight, and for a as 4-bit codes want it.
struct OneRow {
  float* scales;
  float* zeros;
  float* group_sums;
#if defined(__AVX2__)
  float* scaled;
  DigitRow digits;
#endif
};

// Lays the memory out for `rows` rows of the weight at a time; returns its size in floats, which is
// all it does without memory.
FUSEWHEEL_INLINE int64_t one_row_scratch(const LinearWeight& weight, int64_t rows, float* memory,
                                         OneRow& one) {
  if (weight.kind == WeightKind::kFloating) {
    return 0;
  }
  int64_t used = 0;
  const auto take = [&](int64_t count) {
    float* start = memory == nullptr ? nullptr : memory + used;
    used += count;
    return start;
  };
  one.scales = take(weight.groups * rows);
  one.zeros = take(weight.groups * rows);
  one.group_sums = take(weight.groups);
#if defined(__AVX2__)
  const int64_t padded = padded_blocks(weight);
  one.scaled = take(padded * kStreams);
  one.digits = {reinterpret_cast<int8_t*>(take(padded * kInt4Block * kMostDigits / 4)), take(padded),
                kMostDigits};
#endif
  return used;
}

// False where this weight and this row have no such product.
FUSEWHEEL_INLINE bool prepare_one_row([[maybe_unused]] const MatmulArgs& args,
                                      [[maybe_unused]] OneRow& one) {
  const LinearWeight& weight = args.weight;
  if (weight.kind != WeightKind::kInt4) {
    return true;
  }
#if defined(__AVX2__)
  const float* a = static_cast<const float*>(args.a);
  const int64_t blocks = weight.columns / kInt4Block;
  one.digits.planes = args.dynamic ? 1 : digits_for(a, blocks, args.dtype);
  if (one.digits.planes == 0) {
    return false;
  }
  to_digits(a, blocks, one.digits, one.scaled);
  const int64_t group_blocks = weight.group_size / kInt4Block;
  for (int64_t g = 0; g < weight.groups; ++g) {
    one.group_sums[g] = 0;
    for (int64_t i = 0; i < group_blocks; ++i) {
      one.group_sums[g] += one.scaled[g * group_blocks + i];
    }
  }
  return true;
#else
  return false;
#endif
}

// Asks for the scales and zeros of `rows` rows.
FUSEWHEEL_INLINE void prefetch_scales(const LinearWeight& weight, int64_t begin, int64_t rows) {
  const int64_t bytes = weight.scale_dtype == Dtype::kFloat32 ? 4 : 2;
  prefetch(weight.scales, begin * weight.groups * bytes, rows * weight.groups * bytes);
  if (weight.kind == WeightKind::kInt4) {
    prefetch(weight.zeros, begin * weight.groups * bytes, rows * weight.groups * bytes);
  }
}

// Rows [begin, begin + count) of the weight times `a`.
FUSEWHEEL_INLINE void one_row(const MatmulArgs& args, int64_t begin, int64_t count,
                              const OneRow& one, float* out) {
  const LinearWeight& weight = args.weight;
  const float* a = static_cast<const float*>(args.a);
  const int64_t groups = weight.groups;
  if (weight.kind == WeightKind::kFloating) {
    return for_dtype(weight.dtype, [&](auto zero) {
      using W = decltype(zero);
      if constexpr (sizeof(Accumulate<W>) == sizeof(float)) {
        stream_rows<W>(weight, begin, count, a, nullptr, 1, out);
      }
    });
  }
  widen_all(weight.scale_dtype, weight.scales, begin * groups, count * groups, one.scales);
  if (weight.kind == WeightKind::kInt8) {
    return stream_rows<int8_t>(weight, begin, count, a, one.scales, groups, out);
  }
#if defined(__AVX2__)
  widen_all(weight.scale_dtype, weight.zeros, begin * groups, count * groups, one.zeros);
  const auto rows = [&](auto together, int64_t row) {
    dot_digits<decltype(together)::value>(weight, begin + row, one.digits,
                                          one.scales + row * groups, one.zeros + row * groups,
                                          one.group_sums, one.scaled, out + row);
  };
  int64_t row = 0;
  for (; row + kStreams <= count; row += kStreams) {
    prefetch_scales(weight, begin + count + row, kStreams);
    rows(Constant<kStreams>{}, row);
  }
  for (; row < count; ++row) {
    rows(Constant<1>{}, row);
  }
#endif
}

}  // namespace fusewheel::FUSEWHEEL_ISA
