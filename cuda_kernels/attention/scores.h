// Which scores there are, what becomes of a product to be one, and how blocks divide the work.
#pragma once

#include "tiles.h"

namespace fusewheel {
namespace {

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

  __device__ bool sees(int64_t row, int64_t column) const {
    return row < rows && column >= begin(row) && column < end(row);
  }

  // Of the tile at `first`: its last row.
  __device__ int64_t last(int64_t first) const {
    return first + kTile < rows ? first + kTile - 1 : rows - 1;
  }

  // Whether a tile has all its rows, and every one sees all of its columns.
  __device__ bool sees_all(int64_t first, int64_t column) const {
    return first + kTile <= rows && begin(last(first)) <= column && column + kTile <= end(first);
  }
};

__device__ inline Band by_query(const AttentionShape& shape) {
  return {shape.queries, shape.keys, shape.left, shape.right};
}
// A key is seen by the queries before it that look so far to the right.
__device__ inline Band by_key(const AttentionShape& shape) {
  return {shape.keys, shape.queries, shape.right, shape.left};
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

  // The score; -inf where the key is not seen. `cap` becomes the hyperbolic tangent of the soft cap.
  __device__ A finish(A product, int64_t query, int64_t key, bool seen, A& cap) const {
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
    const int64_t at = query * query_stride + key * key_stride;
    if (is_mask) {
      return static_cast<const bool*>(bias)[at] ? score : kNothing<A>;
    }
    return score + widen(static_cast<const T*>(bias)[at]);
  }
};

// A task is a tile of rows of one head and some columns of its result. Tasks that follow each other
// are of different heads, from the last rows to the first: under a causal mask those have the most
// work.
struct Division {
  int64_t heads;
  int64_t parts;  // of the columns
  int64_t tasks;

  Division(int64_t batch, int64_t heads, int64_t rows, int64_t size, int64_t columns)
      : heads(heads),
        parts(size > columns ? (size + columns - 1) / columns : 1),
        tasks(batch * heads * parts * ((rows + kTile - 1) / kTile)) {}
};

struct Task {
  int64_t batch;
  int64_t head;
  int64_t first;  // row
  int64_t part;

  __device__ Task(const Division& division, int64_t batches, int64_t index) {
    const int64_t beside = batches * division.heads * division.parts;
    first = (division.tasks / beside - 1 - index / beside) * kTile;
    part = index % division.parts;
    head = index / division.parts % division.heads;
    batch = index % beside / division.parts / division.heads;
  }
};

template <typename A>
__device__ A* row_values(void* values, const AttentionShape& shape, int64_t batch, int64_t head) {
  return static_cast<A*>(values) + (batch * shape.heads + head) * shape.queries;
}

// Calls body(T{}, groups) with the element type, and with as many groups of columns as `size` needs;
// at most two.
template <typename Body>
void for_tiles(Dtype dtype, int64_t size, const Body& body) {
  for_dtype(dtype, [&](auto zero) {
    using A = Accumulate<decltype(zero)>;
    if (size <= kResultColumns<A, 1>) {
      body(zero, std::integral_constant<int, 1>());
    } else {
      body(zero, std::integral_constant<int, 2>());
    }
  });
}

}  // namespace
}  // namespace fusewheel
