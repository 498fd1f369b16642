// Rows of bfloat16 in the order in which AMX multiplies by them.
#pragma once

#include "amx.h"

#if defined(__AVX512F__)

namespace fusewheel::FUSEWHEEL_ISA {

FUSEWHEEL_INLINE __m512i load_bits(const void* from) { return _mm512_loadu_si512(from); }

// Rows [first, first + count), `stride` apart; zeros up to the stride and in rows up to `rows`. Returns
// whether all numbers are finite.
FUSEWHEEL_INLINE bool copy_rows(const Head& head, int64_t first, int64_t count, int64_t rows,
                                BFloat16* to, int64_t stride) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 odd = 0;
  for (int64_t i = 0; i < count; ++i) {
    const BFloat16* from = static_cast<const BFloat16*>(head.data) + (first + i) * head.row;
    for (int64_t j = 0; j < stride; j += kStep) {
      const int64_t live = head.size - j < kStep ? head.size - j : kStep;
      __m512i bits = _mm512_setzero_si512();
      if (live > 0 && head.element == 1) {
        bits = _mm512_maskz_loadu_epi16(~__mmask32{0} >> (kStep - live), from + j);
      } else if (live > 0) {
        BFloat16 lanes[kStep] = {};
        for (int64_t lane = 0; lane < live; ++lane) {
          lanes[lane] = from[(j + lane) * head.element];
        }
        bits = load_bits(lanes);
      }
      odd |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(bits, exponent), exponent);
      _mm512_storeu_si512(to + i * stride + j, bits);
    }
  }
  __builtin_memset(to + count * stride, 0, (rows - count) * stride * sizeof(BFloat16));
  return odd == 0;
}

FUSEWHEEL_INLINE bool is_finite(BFloat16 value) { return (value.bits & 0x7f80) != 0x7f80; }

// Replaces what is not finite by zero; marks these rows.
inline void clean_rows(BFloat16* rows, int64_t count, int64_t stride, bool* marks) {
  for (int64_t i = 0; i < count; ++i) {
    marks[i] = false;
    for (int64_t j = 0; j < stride; ++j) {
      if (!is_finite(rows[i * stride + j])) {
        marks[i] = true;
        rows[i * stride + j] = BFloat16{0};
      }
    }
  }
}

// Columns that are rows of `rows`, a multiple of 16 of them, with whole steps.
inline void columns_of_rows(const BFloat16* rows, int64_t stride, int64_t count, int64_t size,
                            BFloat16* to) {
  for (int64_t i = 0; i < count; i += kTile) {
    for (int64_t j = 0; j < size; j += kStep) {
      Vec<float> block[kTile];
      for (int lane = 0; lane < kTile; ++lane) {
        block[lane] = bit_cast<Vec<float>>(load_bits(rows + (i + lane) * stride + j));
      }
      turn_pairs(block, to, kStep);
      to += kTileSize;
    }
  }
}

// Sixteen columns of two rows, side by side.
FUSEWHEEL_INLINE Bits beside(const BFloat16* row, const BFloat16* next) {
  Half low;
  Half high;
  __builtin_memcpy(&low, row, sizeof(low));
  __builtin_memcpy(&high, next, sizeof(high));
  return __builtin_convertvector(low, Bits) | __builtin_convertvector(high, Bits) << 16;
}

// Columns that are columns of `rows`: `size` of them, a multiple of 16, and `count` rows, whole steps.
// `tile` is the distance from one tile to the next.
inline void columns_of_columns(const BFloat16* rows, int64_t stride, int64_t count, int64_t size,
                               BFloat16* to, int64_t tile) {
  for (int64_t i = 0; i < count; i += 2) {
    for (int64_t j = 0; j < size; j += kTile) {
      const Bits both = beside(rows + i * stride + j, rows + (i + 1) * stride + j);
      __builtin_memcpy(to + j / kTile * tile + i * kTile, &both, sizeof(both));
    }
  }
}

// Columns as rows, likewise.
inline void turn_columns(const BFloat16* rows, int64_t stride, int64_t count, int64_t size,
                         BFloat16* to, int64_t to_stride) {
  for (int64_t i = 0; i < count; i += kStep) {
    for (int64_t j = 0; j < size; j += kTile) {
      Vec<float> block[kTile];
      for (int pair = 0; pair < kTile; ++pair) {
        const BFloat16* row = rows + (i + 2 * pair) * stride + j;
        block[pair] = bit_cast<Vec<float>>(beside(row, row + stride));
      }
      turn_pairs(block, to + j * to_stride + i, to_stride);
    }
  }
}

// Sums [element, row] as rows of a head of a tensor.
inline void store_columns(const float* sums, int64_t stride, int64_t count, float factor,
                   const Head& head, int64_t first) {
  for (int64_t i = 0; i < count; i += kTile) {
    for (int64_t j = 0; j < head.size; j += kTile) {
      Vec<float> block[kTile];
      for (int64_t lane = 0; lane < kTile; ++lane) {
        block[lane] = load(sums + (j + lane) * stride + i) * factor;
      }
      transpose<float>(block);
      const int64_t live = head.size - j < kTile ? head.size - j : kTile;
      for (int64_t lane = 0; lane < kTile && i + lane < count; ++lane) {
        BFloat16* to = static_cast<BFloat16*>(const_cast<void*>(head.data)) +
                       (first + i + lane) * head.row + j;
        store(to, block[lane], live);
      }
    }
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX512F__
