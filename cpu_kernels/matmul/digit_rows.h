// A few rows of a, rounded to int8, against 4-bit codes: each code is taken apart once for up to
// kDigitRows of them.
#pragma once

#include "digits.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// `rows` rows of the weight times `count` rows of a: out[i * stride + r].
template <int rows, int count, bool vnni>
__attribute__((noinline)) void dot_digit_rows(const CodeRows<float>& weight, const DigitRow* a,
                                              float* out, int64_t stride) {
  constexpr int lanes = kLanes<float>;
  Vec<float> totals[rows][count] = {};
  for_each_chunk(weight.blocks, [&](int64_t block, auto live) FUSEWHEEL_INLINED {
    BlockLanes of_a[count];
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) {
      of_a[i] = block_lanes(a[i], block);
    }
    const int64_t place = block / kVectorBlocks * (2 * kBytes);
    for (int r = 0; r < rows; ++r) {
      const CodeRows<float> row = row_of(weight, r);
      const uint8_t* from = row.codes + block * (kInt4Block / 2);
      prefetch(from + rows * weight.stride, 0, lanes * (kInt4Block / 2));
      const Vec<float> scale = load(row.scales + block, live);
      const Vec<float> middle = load(row.zeros + block, live) + scale * float{kCodeMiddle};
      const Halves codes(from, live);
#pragma GCC unroll 4
      for (int i = 0; i < count; ++i) {
        const Vec<float> total = totals[r][i] + middle * load(a[i].sums + block);
        totals[r][i] = total + folded_products<vnni>(codes, a[i].digits + place, of_a[i].start) *
                                   of_a[i].steps * by_pieces(scale);
      }
    }
  });
  // The lanes of as many vectors as there are lanes are added up together.
  constexpr int vectors = (rows * count + lanes - 1) / lanes * lanes;
  Vec<float> flat[vectors] = {};
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < count; ++i) {
      flat[i * rows + r] = totals[r][i];
    }
  }
  float sums[vectors];
  for (int i = 0; i < vectors; i += lanes) {
    store(sums + i, sums_of<float>(flat + i));
  }
  for (int i = 0; i < count; ++i) {
    __builtin_memcpy(out + i * stride, sums + i * rows, rows * sizeof(float));
  }
}

template <int rows, bool vnni>
FUSEWHEEL_INLINE void dot_digit_rows(const CodeRows<float>& weight, const DigitRow* a, int64_t count,
                                     float* out, int64_t stride) {
  switch (count) {
    case 2: return dot_digit_rows<rows, 2, vnni>(weight, a, out, stride);
    case 3: return dot_digit_rows<rows, 3, vnni>(weight, a, out, stride);
    default: return dot_digit_rows<rows, 4, vnni>(weight, a, out, stride);
  }
}

// `rows` rows of the weight from `begin` times two or more rows of a. `scales` and `zeros` are scratch
// memory for those of blocks.
template <int rows>
FUSEWHEEL_INLINE void dot_digit_rows(const LinearWeight& weight, int64_t begin, const DigitRow* a,
                                     int64_t count, float* scales, float* zeros, float* out,
                                     int64_t stride) {
  const int64_t blocks = weight.columns / kInt4Block;
  const int64_t group_blocks = weight.group_size / kInt4Block;
  const int64_t first = begin * weight.groups;
  const int64_t groups = rows * weight.groups;
  if (group_blocks == 1) {
    const int64_t size = bytes_of(weight.scale_dtype);
    prefetch(weight.scales, (first + groups) * size, groups * size);
    prefetch(weight.zeros, (first + groups) * size, groups * size);
    widen_all(weight.scale_dtype, weight.scales, first, groups, scales);
    widen_all(weight.scale_dtype, weight.zeros, first, groups, zeros);
  } else {
    spread_groups(weight.scale_dtype, weight.scales, first, groups, group_blocks, scales);
    spread_groups(weight.scale_dtype, weight.zeros, first, groups, group_blocks, zeros);
  }
  const CodeRows<float> codes = {
      static_cast<const uint8_t*>(weight.data) + begin * weight.stride, weight.stride, scales, zeros,
      blocks};
  // Parts that are alike: none is of one row, for which taking codes apart would not pay.
  for (int64_t parts = (count + kDigitRows - 1) / kDigitRows; parts > 0; --parts) {
    const int64_t together = (count + parts - 1) / parts;
    if (choices().vnni) {
      dot_digit_rows<rows, true>(codes, a, together, out, stride);
    } else {
      dot_digit_rows<rows, false>(codes, a, together, out, stride);
    }
    a += together;
    out += together * stride;
    count -= together;
  }
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
