// One row of a, or very few, as in generating text: which of the streaming products a weight takes.
#pragma once

#include "digit_fours.h"
#include "prepared_row.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Rows of the weight that are read at once where these lie far apart. On a Zen 4 at level v4 eight were faster
// than four; at level v3 only four were tried.
constexpr int kFarStreams = kBytes == 64 ? 8 : 4;

// Whether it pays to read rows of the weight that lie far apart. On a Zen 4 neighbouring rows waited
// for memory: 4 x 2048 x 2048 in float32 took 1.25 times as long with two threads, two rows 1.4 times.
FUSEWHEEL_INLINE bool far_rows_pay(const LinearWeight& weight) {
  const bool is_float32 = weight.kind == WeightKind::kFloating && weight.dtype == Dtype::kFloat32;
  return kBytes >= 32 && choices().far_rows && (is_float32 || (kBytes == 64 && choices().far_halves));
}

// Whether a thread reads rows of the weight that lie far apart, each of them the start of a part of its
// rows.
FUSEWHEEL_INLINE bool reads_far_rows(const LinearWeight& weight, [[maybe_unused]] const OneRow& one) {
#if defined(__AVX2__)
  if (weight.kind == WeightKind::kInt4) {
    return takes_fours(weight, one.digits[0]);
  }
#endif
  return weight.kind == WeightKind::kFloating && far_rows_pay(weight);
}

// Whether the rows of the weight are read one after another.
FUSEWHEEL_INLINE bool takes_turns(const LinearWeight& weight, [[maybe_unused]] const OneRow& one) {
  // Rows that are left over must have the bits of those that lie far apart: those of rows side by side.
  if (!choices().rows_in_turn || reads_far_rows(weight, one)) {
    return false;
  }
#if defined(__AVX2__)
  if (weight.kind == WeightKind::kInt4) {
    return weight.columns * one.digits[0].planes <= kTurnDigits;
  }
#endif
  return weight.columns <= kTurnDepth &&
         (weight.kind == WeightKind::kInt8 || weight.dtype != Dtype::kFloat32);
}

// Row `begin` of the weight and others that lie `apart` rows behind each other, times `a`. The bits are
// those of rows side by side.
FUSEWHEEL_INLINE void far_rows(const MatmulArgs& args, int64_t begin, int64_t apart,
                               [[maybe_unused]] const OneRow& one, float* out) {
  const LinearWeight& weight = args.weight;
#if defined(__AVX2__)
  if (weight.kind == WeightKind::kInt4) {
    static_assert(kBytes == 64 || kFours == kFarStreams);
    return dot_fours(weight, begin, apart, kFours, one.digits[0], out);
  }
#endif
  for_dtype(weight.dtype, [&](auto zero) {
    using W = decltype(zero);
    if constexpr (sizeof(Accumulate<W>) == sizeof(float)) {
      dot_streams<kFarStreams, kLineNumbers<W>>(
          static_cast<const W*>(weight.data) + begin * weight.stride, apart * weight.stride,
          static_cast<const float*>(args.a), nullptr, 1, weight.columns, out);
    }
  });
}

#if defined(__AVX2__)
// Rows [begin, begin + count) of the weight times one row of a.
FUSEWHEEL_INLINE void digit_row(const LinearWeight& weight, int64_t begin, int64_t count,
                                const DigitRow& a, bool in_turn, const OneRow& memory,
                                float* out) {
  if (takes_fours(weight, a)) {
    for (int64_t row = 0; row < count; row += kFours) {
      float sums[kFours];
      const int64_t live = count - row < kFours ? count - row : kFours;
      dot_fours(weight, begin + row, 1, live, a, sums);
      __builtin_memcpy(out + row, sums, live * sizeof(float));
    }
    return;
  }
  by_streams<kDigitStreams>(count, false, [&](auto together, int64_t row) {
    constexpr int rows = decltype(together)::value;
    with_code_rows<rows>(weight, begin + row, memory.scales, memory.zeros, [&](const auto& codes) {
      dot_digits<rows>(codes, a, in_turn, out + row);
    });
  });
}

// The same for each row of a; `stride` is that of `out`.
FUSEWHEEL_INLINE void exact_rows(const MatmulArgs& args, int64_t begin, int64_t count,
                                 const OneRow& one, float* out, int64_t stride) {
  const bool in_turn = takes_turns(args.weight, one);
  for (int64_t row = 0; row < args.m; ++row) {
    digit_row(args.weight, begin, count, one.digits[row], in_turn, one, out + row * stride);
  }
}
#else
FUSEWHEEL_INLINE void exact_rows(const MatmulArgs&, int64_t, int64_t, const OneRow&, float*,
                                 int64_t) {}
#endif

// Rows [begin, begin + count) of the weight times `a`.
FUSEWHEEL_INLINE void one_row(const MatmulArgs& args, int64_t begin, int64_t count,
                              const OneRow& one, float* out) {
  const LinearWeight& weight = args.weight;
  const bool in_turn = takes_turns(weight, one);
#if defined(__AVX2__)
  if (weight.kind == WeightKind::kBlocks) {
    return dot_blocks(weight, begin, count, static_cast<const float*>(args.a), one.block_digits,
                      one.block_planes, out);
  }
  if (weight.kind == WeightKind::kInt4) {
    return digit_row(weight, begin, count, one.digits[0], in_turn, one, out);
  }
#endif
  const float* a = static_cast<const float*>(args.a);
  const int64_t groups = weight.groups;
  by_streams(count, in_turn, [&](auto together, int64_t row) {
    constexpr int rows = decltype(together)::value;
    const int64_t first = begin + row;
    switch (weight.kind) {
      case WeightKind::kFloating:
        return for_dtype(weight.dtype, [&](auto zero) {
          using W = decltype(zero);
          if constexpr (sizeof(Accumulate<W>) == sizeof(float)) {
            stream_rows<rows, W>(weight, first, a, nullptr, 1, out + row);
          }
        });
      case WeightKind::kInt8:
        widen_all(weight.scale_dtype, weight.scales, first * groups, rows * groups, one.scales);
        return stream_rows<rows, int8_t>(weight, first, a, one.scales, groups, out + row);
      case WeightKind::kInt4:
      case WeightKind::kBlocks: return;
    }
  });
}

#if defined(__AVX2__)
// Rows [begin, begin + count) of the weight times all rows of a; `stride` is that of `out`.
FUSEWHEEL_INLINE void digit_rows(const MatmulArgs& args, int64_t begin, int64_t count,
                                 const OneRow& one, float* out, int64_t stride) {
  by_streams(count, false, [&](auto together, int64_t row) {
    constexpr int rows = decltype(together)::value;
    with_code_rows<rows>(args.weight, begin + row, one.scales, one.zeros, [&](const auto& codes) {
      dot_digit_rows<rows>(codes, one.digits, args.m, out + row, stride);
    });
  });
}
#else
FUSEWHEEL_INLINE void digit_rows(const MatmulArgs&, int64_t, int64_t, const OneRow&, float*,
                                 int64_t) {}
#endif

}  // namespace fusewheel::FUSEWHEEL_ISA
