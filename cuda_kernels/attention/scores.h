// Which scores there are, and what becomes of a product to be one.
#pragma once

#include "tasks.h"

namespace fusewheel {
namespace {

// Some columns of a tile.
struct Span {
  int begin;
  int end;

  __device__ bool holds(int column) const { return column >= begin && column < end; }
};

// What is seen of a tile. All is counted from its first row and column, and as good as infinite from
// the tile's size on.
struct TileBand {
  int rows;
  int columns;
  int begin;  // of the first row; each row begins, and ends, one column later
  int end;

  __device__ Span span(int row) const {
    const int last = end + row < columns ? end + row : columns;
    return {begin + row, row < rows ? last : 0};
  }
};

// Rows of scores and the columns that they see. Row i stands at column i + columns - rows and sees so
// many columns before and after that one; -1 for all of them.
struct Band {
  int64_t rows;
  int64_t columns;
  int64_t before;
  int64_t after;

  __device__ int64_t place(int64_t row) const { return row + columns - rows; }

  __device__ int64_t begin(int64_t row) const {
    const int64_t first = before < 0 ? 0 : place(row) - before;
    return first > 0 ? first : 0;
  }

  __device__ int64_t end(int64_t row) const {
    const int64_t end = after < 0 ? columns : place(row) + after + 1;
    return end < columns ? end : columns;
  }

  // Of the tile at `first`: its last row.
  __device__ int64_t last(int64_t first) const {
    return first + kTile < rows ? first + kTile - 1 : rows - 1;
  }

  // Which elements are seen of the tile whose first row is `first` and first column `column`.
  __device__ TileBand tile(int64_t first, int64_t column) const {
    const int64_t own = place(first) - column;
    return {within(rows - first), within(columns - column), before < 0 ? -kTile : near(own - before),
            after < 0 ? kTile : near(own + after + 1)};
  }

 private:
  static __device__ int within(int64_t column) {
    return column < 0 ? 0 : column < kTile ? static_cast<int>(column) : kTile;
  }
  // As far outside of a tile as matters.
  static __device__ int near(int64_t column) {
    return column < -kTile ? -kTile : column < kTile ? static_cast<int>(column) : kTile;
  }
};

__device__ inline Band by_query(const Sequence& own, const AttentionShape& shape) {
  return {own.queries, own.keys, shape.left, shape.right};
}
// A key is seen by the queries before it that look so far to the right.
__device__ inline Band by_key(const Sequence& own, const AttentionShape& shape) {
  return {own.keys, own.queries, shape.right, shape.left};
}

// Makes scores of the products of one head.
template <typename T>
struct Scores {
  using A = Accumulate<T>;
  A scale;
  A softcap;
  const void* bias;
  int64_t query_stride;
  int64_t key_stride;
  bool is_mask;

  __device__ Scores(const AttentionArgs& args, int64_t batch, int64_t head)
      : scale(static_cast<A>(args.shape.scale)),
        softcap(static_cast<A>(args.shape.softcap)),
        bias(args.bias.data),
        query_stride(args.bias.strides[2]),
        key_stride(args.bias.strides[3]),
        is_mask(args.shape.is_mask) {
    if (bias != nullptr) {
      const int64_t at = batch * args.bias.strides[0] + head * args.bias.strides[1];
      bias = static_cast<const char*>(bias) + at * (is_mask ? 1 : sizeof(T));
    }
  }

  // Whether a product only has to be scaled.
  __device__ bool is_plain() const { return bias == nullptr && !(softcap > 0); }

  // The score; -inf where the key is not seen. `cap` becomes the hyperbolic tangent of the soft cap.
  __device__ A finish(A product, int64_t query, int64_t key, bool seen, A& cap) const {
    return finish(product, query * query_stride + key * key_stride, seen, cap);
  }

  // Likewise, with the bias `at` elements from that of the first query and key.
  __device__ A finish(A product, int64_t at, bool seen, A& cap) const {
    if (!seen) {
      return kNothing<A>;
    }
    A score = product * scale;
    if (softcap > 0) {
      cap = hyperbolic_tangent(score / softcap);
      score = cap * softcap;
    }
    if (bias == nullptr) {
      return score;
    }
    if (is_mask) {
      return static_cast<const bool*>(bias)[at] ? score : kNothing<A>;
    }
    const A added = widen(static_cast<const T*>(bias)[at]);
    return added == kNothing<A> ? added : score + added;
  }
};

// Calls body(groups) with as many groups of columns as `size` needs; at most two, in float64 one: a
// thread has no registers for more. With `few`, where other kernels take most heads, always two.
template <typename A, bool few, typename Body>
void for_groups(int64_t size, const Body& body) {
  if constexpr (sizeof(A) == sizeof(double)) {
    body(std::integral_constant<int, 1>());
  } else if constexpr (few) {
    body(std::integral_constant<int, 2>());
  } else if (size > kResultColumns<A, 1>) {
    body(std::integral_constant<int, 2>());
  } else {
    body(std::integral_constant<int, 1>());
  }
}

}  // namespace
}  // namespace fusewheel
