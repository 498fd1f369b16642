// Squares of vectors, turned.
#pragma once

#include "vec.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Exchanges the off-diagonal blocks of `width`, then of half that: Eklundh's transposition. With `piece`,
// so many lanes stay together, and there are that many fewer rows.
template <typename A, int piece = 1, int width = kLanes<A> / 2>
FUSEWHEEL_INLINE void transpose(Vec<A>* rows) {
  if constexpr (width >= piece) {
    using Integer = typename VecOf<A>::integer;
    constexpr int lanes = kLanes<A>;
    constexpr int step = width / piece;
    Integer low;
    Integer high;
    for (int lane = 0; lane < lanes; ++lane) {
      low[lane] = (lane & width) == 0 ? lane : lane - width + lanes;
      high[lane] = (lane & width) == 0 ? lane + width : lane + lanes;
    }
#pragma GCC unroll 16
    for (int i = 0; i < lanes / piece; ++i) {
      if ((i & step) == 0) {
        const Vec<A> a = rows[i];
        const Vec<A> b = rows[i + step];
        rows[i] = shuffle(a, b, low);
        rows[i + step] = shuffle(a, b, high);
      }
    }
    transpose<A, piece, width / 2>(rows);
  }
}

struct Plus {
  template <typename V>
  FUSEWHEEL_INLINE V operator()(V a, V b) const {
    return a + b;
  }
};

// Adds, or combines, the lanes of two vectors that are `width` apart. Those of `a` are where that bit of
// the lane's number is 0, those of `b` where it is 1.
template <int width, typename V, typename Combine = Plus>
FUSEWHEEL_INLINE V fold(V a, V b, Combine combine = {}) {
  constexpr int lanes = sizeof(V) / sizeof(a[0]);
  decltype(a < b) low;  // whole numbers
  decltype(a < b) high;
  for (int lane = 0; lane < lanes; ++lane) {
    low[lane] = (lane & width) == 0 ? lane : lane - width + lanes;
    high[lane] = (lane & width) == 0 ? lane + width : lane + lanes;
  }
  return combine(shuffle(a, b, low), shuffle(a, b, high));
}

// Folds so many vectors that one is left; the lanes of vector i become lane i.
template <int width, typename V, typename Combine = Plus>
FUSEWHEEL_INLINE void fold_all(V* rows, Combine combine = {}) {
  if constexpr (width > 0) {
#pragma GCC unroll 8
    for (int i = 0; i < width; ++i) {
      rows[i] = fold<width>(rows[i], rows[i + width], combine);
    }
    fold_all<width / 2>(rows, combine);
  }
}

// The sums of kLanes vectors, one a lane, added in the order in which sum() adds.
template <typename A>
FUSEWHEEL_INLINE Vec<A> sums_of(const Vec<A>* values) {
  constexpr int lanes = kLanes<A>;
  Vec<A> rows[lanes];
  for (int i = 0; i < lanes; ++i) {
    rows[i] = values[i];
  }
  fold_all<lanes / 2>(rows);
  return rows[0];
}

}  // namespace fusewheel::FUSEWHEEL_ISA
