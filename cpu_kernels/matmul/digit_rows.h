// A few rows of a, rounded to int8, against 4-bit codes: each code is taken apart once for up to
// kDigitRows of them.
#pragma once

#include "digits.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// Several rows of a have at most so many digits where the rows of the weight are read one after another. On a
// Zen 4 two rows of 2048 were 1.2 times as fast so, two of 8192 were not.
constexpr int64_t kTurnRowsDigits = 8192;

// `rows` rows of the weight times `count` rows of a, side by side or in turn: out[i * stride + r].
template <int rows, int count, bool vnni, typename S>
__attribute__((noinline)) void dot_digit_rows(const CodeRows<S>& weight, const DigitRow* a, bool in_turn,
                                              float* out, int64_t stride) {
  constexpr int lanes = kLanes<float>;
  Vec<float> totals[rows][count] = {};
  const auto add = [&](const CodeRows<S>& row, int64_t block, auto live, Vec<float>* sums) FUSEWHEEL_INLINED {
    const int64_t place = block / kVectorBlocks * (2 * kBytes);
    const Vec<float> scale = load(row.scales + block, live);
    const Vec<float> middle = load(row.zeros + block, live) + scale * float{kCodeMiddle};
    const Halves<kVectorsOf<decltype(live)>> codes(row.codes + block * (kInt4Block / 2), live);
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) {
      const BlockLanes of_a = block_lanes(a[i], block);
      const Vec<float> total = sums[i] + middle * load(a[i].sums + block);
      sums[i] = total + folded_products<vnni>(codes, a[i].digits + place, of_a.start) *
                                 of_a.steps * by_pieces(scale);
    }
  };
  if (in_turn || rows == 1) {
    for (int r = 0; r < rows; ++r) {
      const CodeRows<S> row = row_of(weight, r);
      Vec<float> sums[count] = {};
      for_each_chunk(weight.blocks, [&](int64_t block, auto live) FUSEWHEEL_INLINED {
        ask_later(row, block, live);
        add(row, block, live, sums);
      });
#pragma GCC unroll 4
      for (int i = 0; i < count; ++i) {
        totals[r][i] = sums[i];
      }
    }
  } else {
    for_each_chunk(weight.blocks, [&](int64_t block, auto live) FUSEWHEEL_INLINED {
      for (int r = 0; r < rows; ++r) {
        const CodeRows<S> row = row_of(weight, r);
        ask_next<rows>(weight, row, r, block);
        add(row, block, live, totals[r]);
      }
    });
  }
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

template <int rows, bool vnni, typename S>
FUSEWHEEL_INLINE void dot_digit_rows(const CodeRows<S>& weight, const DigitRow* a, int64_t count,
                                     bool in_turn, float* out, int64_t stride) {
  switch (count) {
    case 2: return dot_digit_rows<rows, 2, vnni>(weight, a, in_turn, out, stride);
    case 3: return dot_digit_rows<rows, 3, vnni>(weight, a, in_turn, out, stride);
    default: return dot_digit_rows<rows, 4, vnni>(weight, a, in_turn, out, stride);
  }
}

// The same for any number of rows of a.
template <int rows, typename S>
FUSEWHEEL_INLINE void dot_digit_rows(const CodeRows<S>& weight, const DigitRow* a, int64_t count,
                                     float* out, int64_t stride) {
  const bool in_turn = choices().rows_in_turn && count * weight.blocks * kInt4Block <= kTurnRowsDigits;
  // Parts that are alike: none is of one row, for which taking codes apart would not pay.
  for (int64_t parts = (count + kDigitRows - 1) / kDigitRows; parts > 0; --parts) {
    const int64_t together = (count + parts - 1) / parts;
    if (choices().vnni) {
      dot_digit_rows<rows, true>(weight, a, together, in_turn, out, stride);
    } else {
      dot_digit_rows<rows, false>(weight, a, together, in_turn, out, stride);
    }
    a += together;
    out += together * stride;
    count -= together;
  }
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
