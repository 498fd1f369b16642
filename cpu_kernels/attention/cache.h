// Rows of a cache against a few queries at a time, read once for all of them.
//
// Columns are taken in pairs of vectors. Of bfloat16 the first vector of a pair has the columns of even
// number and the second those of odd number, which takes two operations instead of four. Whatever
// meets such rows has its columns in the same order.
#pragma once

#include <fusewheel/attention/attention_decode_args.h>

#include "ahead.h"
#include "matmul/decode.h"
#include "simd/transpose.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Queries at a time: as many as have their sums in registers.
constexpr int kFewQueries = 4;

// Queries are divided by this before they meet keys in int8, and factors of keys multiplied: products with
// codes alone may be beyond the range where those with scaled codes are not.
constexpr double kCodeRange = 65536;

template <typename A>
constexpr int kPairOf = 2 * kLanes<A>;

template <typename A>
struct Pair {
  Vec<A> first;
  Vec<A> second;
};

// The column, counted from the first of its pair, that is in a lane of the first or second vector.
template <typename E>
struct ColumnOf {
  static constexpr int at(int lane, int second, int lanes) { return second * lanes + lane; }
};
template <>
struct ColumnOf<BFloat16> {
  static constexpr int at(int lane, int second, int) { return 2 * lane + second; }
};

// One pair of columns, from memory in the plain order.
template <typename A, typename E>
FUSEWHEEL_INLINE void to_pair(const A* plain, A* pair) {
  for (int second = 0; second < 2; ++second) {
    for (int lane = 0; lane < kLanes<A>; ++lane) {
      pair[second * kLanes<A> + lane] = plain[ColumnOf<E>::at(lane, second, kLanes<A>)];
    }
  }
}
template <typename A, typename E>
FUSEWHEEL_INLINE void from_pair(const A* pair, A* plain) {
  for (int second = 0; second < 2; ++second) {
    for (int lane = 0; lane < kLanes<A>; ++lane) {
      plain[ColumnOf<E>::at(lane, second, kLanes<A>)] = pair[second * kLanes<A> + lane];
    }
  }
}

template <typename A, typename E>
FUSEWHEEL_INLINE Pair<A> load_pair(const E* from) {
  return {load(from), load(from + kLanes<A>)};
}
template <>
FUSEWHEEL_INLINE Pair<float> load_pair<float, BFloat16>(const BFloat16* from) {
  Bits bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  return {bit_cast<Vec<float>>(bits << 16), bit_cast<Vec<float>>(bits & 0xffff0000)};
}
template <>
FUSEWHEEL_INLINE Pair<float> load_pair<float, int8_t>(const int8_t* from) {
  return {from_codes(load_codes(from)), from_codes(load_codes(from + kLanes<float>))};
}
template <>
FUSEWHEEL_INLINE Pair<double> load_pair<double, int8_t>(const int8_t* from) {
  Pair<double> pair;
  for (int lane = 0; lane < kLanes<double>; ++lane) {
    pair.first[lane] = static_cast<double>(from[lane]);
    pair.second[lane] = static_cast<double>(from[kLanes<double> + lane]);
  }
  return pair;
}

// The first `live` columns, then zeros; nothing behind them is read.
template <typename A, typename E>
FUSEWHEEL_INLINE Pair<A> load_pair(const E* from, int64_t live) {
  E columns[kPairOf<A>] = {};
  for (int64_t column = 0; column < live; ++column) {
    columns[column] = from[column];
  }
  return load_pair<A, E>(columns);
}

// Keeps a vector in a register: the compiler would read it again for each use.
template <typename V>
FUSEWHEEL_INLINE void keep(V& value) {
#if FUSEWHEEL_X86
  asm("" : "+v"(value));
#endif
}

// The products of `queries` queries with kLanes keys, one key a lane. Key i is the row at keys + at[i];
// queries are rows `stride` apart, zeros behind `size` columns.
template <typename A, typename E, int queries, bool by_lines>
__attribute__((noinline)) void score(const A* q, int64_t stride, const E* keys, const int64_t* at,
                            int64_t size, Vec<A>* scores) {
  constexpr int half = kLanes<A> / 2;
  Vec<A> parts[queries][half];
  [[maybe_unused]] LinesAhead<A, E> lines(keys, at + kAhead, size);
  // Two keys share what is read of the queries.
  for (int lane = 0; lane < half; ++lane) {
    const E* row = keys + at[lane];
    const E* other = keys + at[lane + half];
    Vec<A> sums[queries] = {};
    Vec<A> others[queries] = {};
    const auto add = [&](int64_t column, Pair<A> own, Pair<A> next) {
      if constexpr (by_lines) {
        lines.template ask<2 * kPairOf<A>>();
      } else {
        ask_ahead(keys + column, at + lane, kPairOf<A>);
        ask_ahead(keys + column, at + lane + half, kPairOf<A>);
      }
#pragma GCC unroll 4
      for (int i = 0; i < queries; ++i) {
        Vec<A> first = load(q + i * stride + column);
        Vec<A> second = load(q + i * stride + column + kLanes<A>);
        keep(first);
        keep(second);
        sums[i] += first * own.first;
        others[i] += first * next.first;
        sums[i] += second * own.second;
        others[i] += second * next.second;
      }
    };
    int64_t column = 0;
    for (; column + kPairOf<A> <= size; column += kPairOf<A>) {
      add(column, load_pair<A, E>(row + column), load_pair<A, E>(other + column));
    }
    if (column < size) {
      const int64_t live = size - column;
      add(column, load_pair<A, E>(row + column, live), load_pair<A, E>(other + column, live));
    }
#pragma GCC unroll 4
    for (int i = 0; i < queries; ++i) {
      parts[i][lane] = fold<half>(sums[i], others[i]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < queries; ++i) {
    fold_all<half / 2>(parts[i]);
    scores[i] = parts[i][0];
  }
}

// Of `queries` queries, what they sum of the values: rows `sum_stride` apart.
template <typename A>
struct Sums {
  const A* shares;  // of the values, rows share_stride apart
  int64_t share_stride;
  A* sums;
  int64_t sum_stride;
};

// Adds `pairs` pairs of columns of the values [begin, end) in their shares; value i is the row at
// values + at[i]. Without `whole`, there is one pair, with `live` columns.
// A function of its own, so that all sums stay in registers.
template <typename A, typename E, int queries, int pairs, bool whole, bool by_lines>
__attribute__((noinline)) void add_columns(const Sums<A>& to, const E* values, const int64_t* at,
                                  int64_t begin, int64_t end, int64_t column, int64_t live,
                                  [[maybe_unused]] LinesAhead<A, E>& ahead) {
  constexpr int lanes = kLanes<A>;
  Vec<A> sums[queries][2 * pairs];
#pragma GCC unroll 4
  for (int i = 0; i < queries; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < 2 * pairs; ++p) {
      sums[i][p] = load(to.sums + i * to.sum_stride + column + p * lanes);
    }
  }
  [[maybe_unused]] LinesAhead<A, E> lines = ahead;
  for (int64_t key = begin; key < end; ++key) {
    const E* from = values + at[key] + column;
    if constexpr (by_lines) {
      lines.template ask<pairs * kPairOf<A>>();
    } else {
      ask_ahead(values + column, at + key, pairs * kPairOf<A>);
    }
    Pair<A> row[pairs];
#pragma GCC unroll 4
    for (int p = 0; p < pairs; ++p) {
      row[p] = whole ? load_pair<A, E>(from + p * kPairOf<A>) : load_pair<A, E>(from, live);
    }
#pragma GCC unroll 4
    for (int i = 0; i < queries; ++i) {
      const Vec<A> share = splat(to.shares[i * to.share_stride + key]);
#pragma GCC unroll 4
      for (int p = 0; p < pairs; ++p) {
        sums[i][2 * p] += share * row[p].first;
        sums[i][2 * p + 1] += share * row[p].second;
      }
    }
  }
  if constexpr (by_lines) {
    ahead = lines;
  }
#pragma GCC unroll 4
  for (int i = 0; i < queries; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < 2 * pairs; ++p) {
      store(to.sums + i * to.sum_stride + column + p * lanes, sums[i][p]);
    }
  }
}

template <typename A, typename E, int queries, bool by_lines>
FUSEWHEEL_INLINE void add_values(const Sums<A>& to, const E* values, const int64_t* at,
                                 int64_t begin, int64_t end, int64_t size) {
  // As many sums as the registers hold.
  constexpr int pairs = kBytes == 64 || queries == 2 ? 2 : queries == 1 ? 4 : 1;
  constexpr int64_t pair = kPairOf<A>;
  LinesAhead<A, E> lines(values, at + begin + kAhead, size);
  int64_t column = 0;
  for (; column + pairs * pair <= size; column += pairs * pair) {
    add_columns<A, E, queries, pairs, true, by_lines>(to, values, at, begin, end, column, pair,
                                                      lines);
  }
  for (; column + pair <= size; column += pair) {
    add_columns<A, E, queries, 1, true, by_lines>(to, values, at, begin, end, column, pair, lines);
  }
  if (column < size) {
    add_columns<A, E, queries, 1, false, by_lines>(to, values, at, begin, end, column,
                                                   size - column, lines);
  }
}

// Calls body(A{}, E{}) with the types of computation and of the cache.
template <typename Body>
FUSEWHEEL_INLINE void for_types(const DecodeShape& shape, Body body) {
  for_dtype(shape.dtype, [&](auto zero) {
    using A = Accumulate<decltype(zero)>;
    if (shape.is_int8) {
      return body(A{}, int8_t{});
    }
    for_dtype(shape.cache_dtype, [&](auto own) {
      if constexpr (sizeof(Accumulate<decltype(own)>) == sizeof(A)) {
        body(A{}, own);
      }
    });
  });
}

template <int count>
struct Count {
  static constexpr int value = count;
};

// Calls body(Count<n>{}) for a number of queries from 1 to kFewQueries.
template <typename Body>
FUSEWHEEL_INLINE void for_queries(int64_t count, Body body) {
  switch (count) {
    case 1: return body(Count<1>{});
    case 2: return body(Count<2>{});
    case 3: return body(Count<3>{});
    default: return body(Count<4>{});
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
