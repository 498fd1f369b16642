// What kernels that work row by row share: sums along a row, and over the rows.
#pragma once

#include "vec.h"

namespace fusewheel::FUSEWHEEL_ISA {

// So many running sums hide the latency of the addition.
constexpr int kSums = 4;

// for_each_vector, and whose turn it is: step(i, live, k) with k < kSums.
template <typename A, typename Step>
FUSEWHEEL_INLINE void for_each_vector_in_turn(int64_t size, Step step) {
  int64_t i = 0;
  for (; i + kSums * kLanes<A> <= size; i += kSums * kLanes<A>) {
#pragma GCC unroll 4
    for (int k = 0; k < kSums; ++k) {
      step(i + k * kLanes<A>, kLanes<A>, k);
    }
  }
  for_each_vector<A>(size - i, [&](int64_t j, int64_t live) { step(i + j, live, 0); });
}

template <typename A>
FUSEWHEEL_INLINE A sum(const Vec<A> (&sums)[kSums]) {
  return sum<A>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// The same, its last additions in double.
template <typename A>
FUSEWHEEL_INLINE double sum_in_double(const Vec<A> (&sums)[kSums]) {
  A lanes[kSums][kLanes<A>];
  for (int k = 0; k < kSums; ++k) {
    store(lanes[k], sums[k]);
  }
  double totals[kLanes<A>];
  for (int i = 0; i < kLanes<A>; ++i) {
    totals[i] = (static_cast<double>(lanes[0][i]) + static_cast<double>(lanes[1][i])) +
                (static_cast<double>(lanes[2][i]) + static_cast<double>(lanes[3][i]));
  }
  for (int width = kLanes<A> / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      totals[i] += totals[i + width];
    }
  }
  return totals[0];
}

// The sum of terms(i, live) over a row. Blocks are summed apart: the longer a sum, the more it rounds.
template <typename A, typename Terms>
FUSEWHEEL_INLINE double sum_of_row(int64_t size, Terms terms) {
  constexpr int64_t kBlock = 4096;
  double total = 0;
  for (int64_t first = 0; first < size; first += kBlock) {
    const int64_t count = size - first < kBlock ? size - first : kBlock;
    Vec<A> sums[kSums] = {};
    for_each_vector_in_turn<A>(count, [&](int64_t i, int64_t live, int k) {
      sums[k] += terms(first + i, live);
    });
    total += static_cast<double>(sum<A>(sums));
  }
  return total;
}

// The first `live` lanes; zero in the others.
template <typename A>
FUSEWHEEL_INLINE Vec<A> first_lanes(Vec<A> value, int64_t live) {
  if (live == kLanes<A>) {
    return value;
  }
  A lanes[kLanes<A>];
  store(lanes, value);
  return load(lanes, live);
}

template <typename A>
FUSEWHEEL_INLINE A square_root(A value) {
  return sizeof(A) == sizeof(float) ? static_cast<A>(__builtin_sqrtf(static_cast<float>(value)))
                                    : static_cast<A>(__builtin_sqrt(value));
}

template <typename A>
FUSEWHEEL_INLINE void clear(A* values, int64_t size) {
  for_each_vector<A>(size, [&](int64_t i, int64_t live) { store(values + i, Vec<A>{}, live); });
}

// Columns [begin, end) of the sum over `partials` [chunks, size]: in the order of the chunks,
// whatever thread made them. Few are summed at a time: the longer a sum, the more it rounds.
template <typename T>
FUSEWHEEL_INLINE void sum_chunks(const void* partials, void* sums, int64_t chunks, int64_t size,
                                 int64_t begin, int64_t end) {
  using A = Accumulate<T>;
  for_each_vector<A>(end - begin, [&](int64_t i, int64_t live) {
    const auto* from = static_cast<const A*>(partials) + begin + i;
    constexpr int64_t kFew = 8;
    Vec<A> total = {};
    for (int64_t first = 0; first < chunks; first += kFew) {
      const int64_t last = first + kFew < chunks ? first + kFew : chunks;
      Vec<A> few = {};
      for (int64_t chunk = first; chunk < last; ++chunk) {
        few += load(from + chunk * size, live);
      }
      total += few;
    }
    store(static_cast<T*>(sums) + begin + i, total, live);
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA
