// One row of a, or very few, as the streaming products of a weight want them: which of those rows are written
// as digits, and the memory for that.
#pragma once

#include "block_row.h"
#include "digit_rows.h"
#include "matmul.h"
#include "streams.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Memory for scales and zeros of some rows of the weight, and for a as 4-bit codes want it.
struct OneRow {
  float* scales;
  float* zeros;
#if defined(__AVX2__)
  DigitRow digits[kMostDigitRows];
  BlockDigits* block_digits;
  int block_planes;
#endif
};

// Whether several rows of a are multiplied as one row is.
FUSEWHEEL_INLINE bool has_digit_rows(const MatmulArgs& args) {
  return args.dynamic && args.weight.kind == WeightKind::kInt4 && args.m > 1 &&
         args.rounded.codes == nullptr;
}

// Up to so many rows of a, each of them exact, meet 4-bit codes as one row does. More are multiplied by
// codes that have been widened for all of them, which AVX-512 does sooner.
constexpr int64_t kExactRows = kBytes == 64 ? 2 : 4;
static_assert(kExactRows <= kMostDigitRows);

FUSEWHEEL_INLINE bool has_exact_rows(const MatmulArgs& args) {
  return !args.dynamic && args.weight.kind == WeightKind::kInt4 && args.m > 1 &&
         args.m <= kExactRows;
}

// Lays the memory out for `rows` rows of digits; returns its size in floats, which is all it does
// without memory.
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
  if (weight.kind == WeightKind::kInt8) {
    one.scales = take(weight.groups * kStreams);
    return used;
  }
#if defined(__AVX2__)
  if (weight.kind == WeightKind::kBlocks) {
    const int64_t floats = static_cast<int64_t>(sizeof(BlockDigits) / sizeof(float));
    one.block_digits = reinterpret_cast<BlockDigits*>(take(block_supers(weight.columns) * floats));
    return used;
  }
  const int64_t padded = padded_blocks(weight);
  one.scales = take(padded * kDigitStreams);
  one.zeros = take(padded * kDigitStreams);
  for (int64_t row = 0; row < rows; ++row) {
    one.digits[row] = {reinterpret_cast<int8_t*>(take(padded * kInt4Block * kMostDigits / 4)),
                       take(padded * kBlockLanes), take(padded),
                       reinterpret_cast<int32_t*>(take(padded * kBlockLanes)), kMostDigits};
  }
#endif
  return used;
}

#if defined(__AVX2__)
FUSEWHEEL_INLINE bool has_tiny_blocks(const float* a, int64_t columns) {
  for (int64_t i = 0; i < columns; i += kInt4Block) {
    if (is_tiny(measure_block(a + i))) {
      return true;
    }
  }
  return false;
}

FUSEWHEEL_INLINE bool prepare_block_row(const LinearWeight& weight, const float* a, Dtype dtype,
                                        OneRow& one) {
  if (has_fractions(weight.blocks.kind) && has_tiny_blocks(a, weight.columns)) {
    return false;
  }
  if (looks_up(weight.blocks.kind)) {
    for_block_kind(weight.blocks.kind, [&](auto decoder) {
      constexpr BlockKind kind = decltype(decoder)::kKind;
      if constexpr (looks_up(kind)) {
        order_for_table<kind>(a, weight.columns, reinterpret_cast<float*>(one.block_digits));
      }
    });
    return true;
  }
  if (weight.blocks.kind == BlockKind::kQ8_0 || has_float_codes(weight.blocks.kind)) {
    return true;
  }
  if (!has_small_codes(weight.blocks.kind)) {
    return false;
  }
  one.block_planes = block_digits_for(a, weight.columns, dtype);
  if (one.block_planes == 0) {
    return false;
  }
  for_block_kind(weight.blocks.kind, [&](auto decoder) {
    constexpr BlockKind kind = decltype(decoder)::kKind;
    if constexpr (has_small_codes(kind)) {
      one.block_planes == 2 ? to_all_digits<kind, 2>(a, weight.columns, one.block_digits)
                            : to_all_digits<kind, 3>(a, weight.columns, one.block_digits);
    }
  });
  return true;
}

// Writes the digits of a row; false if it has none.
FUSEWHEEL_INLINE bool prepare_digits(const MatmulArgs& args, int64_t row, OneRow& one) {
  const DigitRow& digits = one.digits[row];
  if (digits.planes == 0) {
    return false;
  }
  to_digits(static_cast<const float*>(args.a) + row * args.a_stride,
            args.weight.columns / kInt4Block, digits);
  return true;
}

// False where a row has no digits.
FUSEWHEEL_INLINE bool prepare_exact_rows(const MatmulArgs& args, OneRow& one) {
  for (int64_t row = 0; row < args.m; ++row) {
    const float* a = static_cast<const float*>(args.a) + row * args.a_stride;
    one.digits[row].planes = digits_for(a, args.weight.columns / kInt4Block, Dtype::kFloat32);
    if (!prepare_digits(args, row, one)) {
      return false;
    }
  }
  return true;
}

// Several rows of a.
FUSEWHEEL_INLINE void prepare_digit_rows(const MatmulArgs& args, OneRow& one) {
  for (int64_t row = 0; row < args.m; ++row) {
    one.digits[row].planes = 1;
    to_digits(static_cast<const float*>(args.a) + row * args.a_stride,
              args.weight.columns / kInt4Block, one.digits[row]);
    turn_digits(one.digits[row], args.weight.columns / kInt4Block);
  }
}
#else
FUSEWHEEL_INLINE bool prepare_exact_rows(const MatmulArgs&, OneRow&) { return false; }
FUSEWHEEL_INLINE void prepare_digit_rows(const MatmulArgs&, OneRow&) {}
#endif

// False where this weight and this row have no such product.
FUSEWHEEL_INLINE bool prepare_one_row([[maybe_unused]] const MatmulArgs& args,
                                      [[maybe_unused]] OneRow& one) {
  const LinearWeight& weight = args.weight;
  if (weight.kind == WeightKind::kFloating || weight.kind == WeightKind::kInt8) {
    return true;
  }
#if defined(__AVX2__)
  const float* a = static_cast<const float*>(args.a);
  if (weight.kind == WeightKind::kBlocks) {
    return prepare_block_row(weight, a, args.dtype, one);
  }
  one.digits[0].planes = args.dynamic ? 1 : digits_for(a, weight.columns / kInt4Block, args.dtype);
  return prepare_digits(args, 0, one);
#else
  return false;
#endif
}

}  // namespace fusewheel::FUSEWHEEL_ISA
