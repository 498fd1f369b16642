// What the backward makes of two rows of scores: shares of the keys, and slopes, the gradients of their
// scores.
#pragma once

#include "amx_pack.h"
#include "powers.h"

#if defined(__AVX512F__)

namespace fusewheel::FUSEWHEEL_ISA {

// Queries that meet a block of keys at a time.
constexpr int64_t kSomeQueries = 128;

// The shares of the keys of a block of queries, and the slopes of their scores. To multiply by, columns
// are keys; slopes also as rows, a multiplicand of their own.
struct Slopes {
  BFloat16* shares;
  BFloat16* slopes;
  BFloat16* rows;
  int64_t stride;  // of rows
  float* dots;     // of the shares and their gradients

  Slopes(int64_t keys, Scratch& scratch) {
    stride = step_stride(keys);
    shares = scratch.take<BFloat16>(kSomeQueries * keys);
    slopes = scratch.take<BFloat16>(kSomeQueries * keys);
    rows = scratch.take<BFloat16>(kSomeQueries * stride);
    dots = scratch.take<float>(kSomeQueries);
  }

  Columns share_columns() const { return {shares, kSomeQueries * kTile}; }
  Columns slope_columns() const { return {slopes, kSomeQueries * kTile}; }
};

// One row of a tile of scores.
struct Row {
  const float* scores;
  const float* grad_shares;
  const float* caps;
  float base;  // logsumexp as an exponent of 2
  float delta;
};

// The shares of sixteen keys and the gradients of their scores. Returns the products of the shares and
// their gradients.
template <bool plain>
FUSEWHEEL_INLINE Vec<float> differentiate(const Row& row, float factor, int64_t j,
                                          Vec<float>* share, Vec<float>* slope) {
  const Vec<float> score = load(row.scores + j);
  const Vec<float> grad = load(row.grad_shares + j);
  *share = exp2(score * factor - row.base);
  *slope = *share * (grad - row.delta);
  if constexpr (plain) {
    return Vec<float>{};
  } else {
    if (row.caps != nullptr) {
      const Vec<float> cap = load(row.caps + j);
      *slope *= 1 - cap * cap;
    }
    // Of a key that is not seen the value may be infinite.
    const auto hidden = score == kNothing<float>;
    *slope = hidden ? Vec<float>{} : *slope;
    return hidden ? Vec<float>{} : *share * grad;
  }
}

// The numbers of two rows, side by side.
FUSEWHEEL_AMX_INLINE __m512i beside(Vec<float> row, Vec<float> next) {
  alignas(64) static constexpr uint16_t kOrder[] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                    21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                    11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(load_bits(kOrder), rounded(row, next));
}

// Makes shares and slopes of two rows, which are row `at` of a block of queries and the next; columns
// [begin, end).
template <bool plain>
FUSEWHEEL_AMX void two_rows(const Slopes& to, const Row& row, const Row& next, float factor,
                            int64_t at, int64_t begin, int64_t end) {
  Vec<float> dots[2] = {};
  BFloat16* own = to.rows + at * to.stride;
  for (int64_t j = begin; j < end; j += kPair) {
    Vec<float> share[2][2];
    Vec<float> slope[2][2];
    for (int half = 0; half < 2; ++half) {
      const int64_t column = j + half * kTile;
      dots[0] += differentiate<plain>(row, factor, column, &share[0][half], &slope[0][half]);
      dots[1] += differentiate<plain>(next, factor, column, &share[1][half], &slope[1][half]);
      const int64_t place = column * kSomeQueries + at * kTile;
      _mm512_store_si512(to.shares + place, beside(share[0][half], share[1][half]));
      _mm512_store_si512(to.slopes + place, beside(slope[0][half], slope[1][half]));
    }
    _mm512_store_si512(own + j, rounded(slope[0][0], slope[0][1]));
    _mm512_store_si512(own + to.stride + j, rounded(slope[1][0], slope[1][1]));
  }
  to.dots[at] = sum<float>(dots[0]);
  to.dots[at + 1] = sum<float>(dots[1]);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX512F__
