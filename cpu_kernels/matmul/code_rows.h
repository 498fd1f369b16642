// Rows of 4-bit codes with a scale and a zero for each block, which a weight has, or which are made from those of
// its groups.
#pragma once

#include "digit_row.h"
#include "simd/prefetch.h"
#include "streams.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// Rows of the weight, side by side: codes, and a scale and a zero a block.
template <typename S>
struct CodeRows {
  const uint8_t* codes;
  int64_t stride;
  const S* scales;
  const S* zeros;
  int64_t blocks;
};

// Row `row` of them.
template <typename S>
FUSEWHEEL_INLINE CodeRows<S> row_of(const CodeRows<S>& weight, int64_t row) {
  const int64_t at = row * weight.blocks;
  return {weight.codes + row * weight.stride, weight.stride, weight.scales + at, weight.zeros + at,
          weight.blocks};
}

// Writes each of `count` numbers `each` times. They may be the last numbers of the memory written to.
template <int each>
FUSEWHEEL_INLINE void repeat_numbers(const float* numbers, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    float repeated[each];
    for (float& number : repeated) {
      number = numbers[i];
    }
    __builtin_memcpy(to + i * each, repeated, sizeof(repeated));
  }
}

// Numbers of groups of 64 or 128 elements as numbers of blocks. As many behind them are asked for.
FUSEWHEEL_INLINE void spread_groups(Dtype dtype, const void* from, int64_t begin, int64_t groups,
                                    int64_t group_blocks, float* to) {
  float* widened = to + groups * (group_blocks - 1);
  widen_all(dtype, from, begin, groups, widened);
  const int64_t bytes = dtype == Dtype::kFloat32 ? sizeof(float) : sizeof(Float16);
  prefetch(from, (begin + groups) * bytes, groups * bytes);
  if (group_blocks == 2) {
    repeat_numbers<2>(widened, groups, to);
  } else {
    repeat_numbers<4>(widened, groups, to);
  }
}

// Calls use(rows of codes) for `rows` rows of the weight from `begin` on. `scales` and `zeros` are scratch
// memory for groups of several blocks.
template <int rows, typename Use>
FUSEWHEEL_INLINE void with_code_rows(const LinearWeight& weight, int64_t begin, float* scales,
                                     float* zeros, Use use) {
  const uint8_t* codes = static_cast<const uint8_t*>(weight.data) + begin * weight.stride;
  const int64_t blocks = weight.columns / kInt4Block;
  const int64_t first = begin * weight.groups;
  if (blocks == weight.groups) {
    return for_dtype(weight.scale_dtype, [&](auto zero) {
      using S = decltype(zero);
      if constexpr (sizeof(Accumulate<S>) == sizeof(float)) {
        use(CodeRows<S>{codes, weight.stride, static_cast<const S*>(weight.scales) + first,
                        static_cast<const S*>(weight.zeros) + first, blocks});
      }
    });
  }
  const int64_t group_blocks = weight.group_size / kInt4Block;
  spread_groups(weight.scale_dtype, weight.scales, first, rows * weight.groups, group_blocks, scales);
  spread_groups(weight.scale_dtype, weight.zeros, first, rows * weight.groups, group_blocks, zeros);
  use(CodeRows<float>{codes, weight.stride, scales, zeros, blocks});
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
