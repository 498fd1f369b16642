// What the norms share: two rows at once, so that what rows have in common, the weight and the sums
// of its gradient, is read and written once for both.
#pragma once

#include "simd/pairs.h"
#include "simd/rows.h"

#include <type_traits>

namespace fusewheel::FUSEWHEEL_ISA {

constexpr int kTogether = 2;

// Blocks of so many elements of a row are summed apart: the longer a sum, the more it rounds.
constexpr int64_t kBlock = 4096;

// Calls body(first, rows) for rows [begin, end). The type of `rows` says how many there are at once.
template <typename Body>
FUSEWHEEL_INLINE void rows_together(int64_t begin, int64_t end, Body body) {
  int64_t row = begin;
  for (; row + kTogether <= end; row += kTogether) {
    body(row, std::integral_constant<int, kTogether>{});
  }
  for (; row < end; ++row) {
    body(row, std::integral_constant<int, 1>{});
  }
}

// A function that loads elements of the rows of x.
template <typename T, typename Args>
FUSEWHEEL_INLINE auto own_rows(const Args& args) {
  const auto* x = static_cast<const T*>(args.x);
  return [&args, x](int64_t row, int64_t i, int64_t live) FUSEWHEEL_STEP {
    return load_pair(x + row * args.x_stride + i, live);
  };
}

// A function that leaves the gradient of x as it was computed.
constexpr auto as_it_is = [](int64_t, int64_t, int64_t, auto grad_x) FUSEWHEEL_STEP {
  return grad_x;
};

template <int rows, typename Step>
FUSEWHEEL_INLINE void for_each(Step step) {
#pragma GCC unroll 2
  for (int r = 0; r < rows; ++r) {
    step(r);
  }
}

template <typename A>
FUSEWHEEL_INLINE VecPair<A> ones() {
  return VecPair<A>{} + A{1};
}

template <typename A>
FUSEWHEEL_INLINE A sum(VecPair<A> value) {
  return sum<A>(value.even + value.odd);
}

// Running sums of pairs; with two of them an addition need not wait for the one before.
constexpr int kTurns = 2;

// Like for_each_pair, but calls step(i, live, k), where k is the running sum whose turn it is.
template <typename A, typename Step>
FUSEWHEEL_INLINE void for_each_pair_in_turn(int64_t size, Step step) {
  int64_t i = 0;
  for (; i + kTurns * kPair<A> <= size; i += kTurns * kPair<A>) {
    step(i, kPair<A>, 0);
    step(i + kPair<A>, kPair<A>, 1);
  }
  for_each_pair<A>(size - i, [&](int64_t j, int64_t live) FUSEWHEEL_STEP { step(i + j, live, 0); });
}

// The sum of the running sums; the last additions are in double.
template <typename A>
FUSEWHEEL_INLINE double sum_in_double(const VecPair<A> (&sums)[kTurns]) {
  return sum_in_double<A>({sums[0].even, sums[0].odd, sums[1].even, sums[1].odd});
}

// The sum of terms(i, live) over a row.
template <typename A, typename Terms>
FUSEWHEEL_INLINE double sum_of_pairs(int64_t size, Terms terms) {
  double total = 0;
  for (int64_t first = 0; first < size; first += kBlock) {
    const int64_t block = size - first < kBlock ? size - first : kBlock;
    VecPair<A> sums[kTurns] = {};
    for_each_pair_in_turn<A>(block, [&](int64_t i, int64_t live, int k) FUSEWHEEL_STEP {
      sums[k] = sums[k] + terms(first + i, live);
    });
    total += static_cast<double>(sum(sums[0] + sums[1]));
  }
  return total;
}

// The first `live` elements of T; zero in the others.
template <typename T, typename A = Accumulate<T>>
FUSEWHEEL_INLINE VecPair<A> first_elements(VecPair<A> value, int64_t live) {
  if (live == kPair<A>) {
    return value;
  }
  A numbers[kPair<A>];
  store_as<T>(numbers, value, kPair<A>);
  return load_as<T>(numbers, live);
}

// The sums along some rows at once; add(i, live, sums) adds its terms to them. Each has one running sum
// and not kTurns, so the blocks are smaller.
template <typename A, int count, typename Add>
FUSEWHEEL_INLINE void sums_together(int64_t size, double (&totals)[count], Add add) {
  for (double& total : totals) {
    total = 0;
  }
  constexpr int64_t kSmall = kBlock / 2;
  for (int64_t first = 0; first < size; first += kSmall) {
    const int64_t block = size - first < kSmall ? size - first : kSmall;
    VecPair<A> sums[count] = {};
    for_each_pair<A>(block, [&](int64_t i, int64_t live) FUSEWHEEL_STEP {
      add(first + i, live, sums);
    });
    for (int k = 0; k < count; ++k) {
      totals[k] += static_cast<double>(sum(sums[k]));
    }
  }
}

// The statistic of a row, or the NaN whose lower half is zero: see round_numbers.
template <typename A>
FUSEWHEEL_INLINE A known_nan(A value) {
  return value == value ? value : static_cast<A>(__builtin_nanf(""));
}

}  // namespace fusewheel::FUSEWHEEL_ISA
