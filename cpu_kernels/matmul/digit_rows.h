// A few rows of a, rounded to int8, against 4-bit codes: each code is taken apart once for up to
// kDigitRows of them.
//
// A block is four pieces of 4 bytes, side by side as they are stored. Here vector i gets piece i of as many blocks as
// there are lanes, so that a lane adds up the products of one block, for all rows of a. For one row it is as fast to
// add up lanes afterwards, as digits.h does.
#pragma once

#include "digits.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// Several rows of a have at most so many digits where the rows of the weight are read one after another. On a
// Zen 4 two rows of 2048 were 1.2 times as fast so, two of 8192 were not.
constexpr int64_t kTurnRowsDigits = 8192;

// Rows of the weight that share what is read of a: as many as leave registers free.
constexpr int kSharingRows = kBytes == 64 ? 2 : 1;

// Turns the digits of a row that meet turned codes: those of whole chunks, and of a rest of several vectors.
FUSEWHEEL_INLINE void turn_digits(const DigitRow& a, int64_t blocks) {
  for_each_chunk(blocks, [&](int64_t block, auto live) {
    if constexpr (kVectorsOf<decltype(live)> == 4) {
      int8_t* digits = a.digits + block / kVectorBlocks * (2 * kBytes);
      for (int half = 0; half < 2; ++half) {
        Bytes vectors[4];
        for (int v = 0; v < 4; ++v) {
          vectors[v] = load_bytes(digits + (2 * v + half) * kBytes);
        }
        turn_pieces(vectors);
        for (int v = 0; v < 4; ++v) {
          __builtin_memcpy(digits + (2 * v + half) * kBytes, &vectors[v], kBytes);
        }
      }
    }
  });
}

// Adds products of the codes in one vector of each row of the weight with `count` rows of a.
template <int rows, int count, bool vnni>
FUSEWHEEL_INLINE void add_vector(const Bytes* codes, const DigitRow* a, int64_t place,
                                 Integers (*whole)[count]) {
  Bytes low[rows];
  Bytes high[rows];
#pragma GCC unroll 2
  for (int r = 0; r < rows; ++r) {
    low[r] = low_half(codes[r]);
    high[r] = high_half(codes[r]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < count; ++i) {
    Bytes with_low = load_bytes(a[i].digits + place);
    Bytes with_high = load_bytes(a[i].digits + place + kBytes);
    keep_loaded(with_low);
    keep_loaded(with_high);
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
      if constexpr (vnni) {
        add_products(whole[r][i], low[r], with_low);
        add_products(whole[r][i], high[r], with_high);
      } else {
        whole[r][i] +=
            add_pairs(multiply_pairs(low[r], with_low) + multiply_pairs(high[r], with_high));
      }
    }
  }
}

// Adds the products of `count` rows of a with some blocks of `rows` rows of the weight. Codes of several
// vectors are turned, so that a lane adds up its own block.
template <int rows, int count, bool vnni, typename S, typename Live>
FUSEWHEEL_INLINE void add_digit_rows(const CodeRows<S>* weight, const DigitRow* a, int64_t block, Live live,
                                     Vec<float> (*totals)[count]) {
  constexpr int vectors = kVectorsOf<Live>;
  Vec<float> scale[rows];
  Bytes codes[vectors][rows];
  Integers whole[rows][count];
#pragma GCC unroll 2
  for (int r = 0; r < rows; ++r) {
    scale[r] = load(weight[r].scales + block, live);
    const Vec<float> middle = load(weight[r].zeros + block, live) + scale[r] * float{kCodeMiddle};
    scale[r] = by_pieces(scale[r]);
    Bytes row[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      const int64_t left = live - v * kVectorBlocks;
      const uint8_t* from = weight[r].codes + block * (kInt4Block / 2) + v * kBytes;
      row[v] = left > 0 ? load_bytes(from, left * (kInt4Block / 2)) : Bytes{};
    }
    if constexpr (vectors > 1) {
      turn_pieces(row);
    }
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      codes[v][r] = row[v];
    }
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) {
      totals[r][i] += middle * load(a[i].sums + block);
      whole[r][i] = vectors > 1 ? block_lanes(a[i], block).start : Integers{};
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) {
    add_vector<rows, count, vnni>(codes[v], a, block / kVectorBlocks * (2 * kBytes) + 2 * v * kBytes, whole);
  }
#pragma GCC unroll 4
  for (int i = 0; i < count; ++i) {
    const BlockLanes of_a = block_lanes(a[i], block);
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
      if constexpr (vectors == 1) {
        whole[r][i] = of_a.start + fold_pieces(whole[r][i]);  // where a block is not, the step is zero
      }
      totals[r][i] += from_codes(whole[r][i]) * of_a.steps * scale[r];
    }
  }
}

// `rows` rows of the weight times `count` rows of a: out[i * stride + r]. All rows of the weight are read at once,
// or, in turn, as many as share what is read of a.
template <int rows, int count, bool vnni, typename S>
__attribute__((noinline)) void dot_digit_rows(const CodeRows<S>& weight, const DigitRow* a, bool in_turn,
                                              float* out, int64_t stride) {
  constexpr int lanes = kLanes<float>;
  constexpr int together = rows < kSharingRows ? rows : kSharingRows;
  static_assert(rows % together == 0);
  Vec<float> totals[rows][count];
  if (in_turn || rows == 1) {
    // Rows that are read at once lie far apart. On a Zen 4 two rows of a with neighbouring rows of 2048 codes from
    // memory took 1.4 times as long.
    constexpr int apart = rows / together;
    const int64_t ahead = rows == 1 ? kBlocksAhead : rows * weight.blocks;
    for (int first = 0; first < apart; ++first) {
      CodeRows<S> some[together];
      for (int r = 0; r < together; ++r) {
        some[r] = row_of(weight, first + r * apart);
      }
      Vec<float> sums[together][count] = {};
      for_each_chunk(weight.blocks, [&](int64_t block, auto live) FUSEWHEEL_INLINED {
        for (int r = 0; r < together; ++r) {
          ask_later(some[r], block, live, ahead);
        }
        add_digit_rows<together, count, vnni>(some, a, block, live, sums);
      });
      for (int r = 0; r < together; ++r) {
        __builtin_memcpy(totals[first + r * apart], sums[r], sizeof(sums[r]));
      }
    }
  } else {
    for (auto& of_row : totals) {
      for (auto& total : of_row) {
        total = Vec<float>{};
      }
    }
    for_each_chunk(weight.blocks, [&](int64_t block, auto live) FUSEWHEEL_INLINED {
      for (int first = 0; first < rows; first += together) {
        CodeRows<S> some[together];
        for (int r = 0; r < together; ++r) {
          some[r] = row_of(weight, first + r);
          ask_next<rows>(weight, some[r], first + r, block);
        }
        add_digit_rows<together, count, vnni>(some, a, block, live, totals + first);
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
