// Which queries and keys a block of attention_decode has, and where they are.
#pragma once

#include <cmath>

#include "common/divide.h"
#include "common/reduce.h"
#include "common/vector.h"
#include "decode.h"

namespace fusewheel {
namespace {

constexpr int kDecodeThreads = 128;
// Elements of queries that are in shared memory at a time.
constexpr int kDecodeDepth = 256;
// So many threads in a row share a key.
constexpr int kKeyThreads = 8;
constexpr int kKeysAtOnce = kDecodeThreads / kKeyThreads;

// Elements that a thread reads at a time: 16 bytes. Of values no more than 8: it has a sum for each,
// and for each query.
template <typename C>
constexpr int kKeyLanes = kLanes<C>;
template <typename C>
constexpr int kValueLanes = kLanes<C> < 8 ? kLanes<C> : 8;

__device__ inline int64_t length_of(const DecodeCall& call, int64_t batch) {
  const int64_t at = batch * call.lengths_stride;
  return call.lengths_are_long ? static_cast<const int64_t*>(call.lengths)[at]
                               : static_cast<const int32_t*>(call.lengths)[at];
}

__device__ inline int64_t capacity_of(const DecodeCall& call) {
  return call.args.entries * call.args.page_size;
}

// The first key that a query sees of a sequence of so many keys.
__device__ inline int64_t first_key(const DecodeShape& shape, int64_t length, int64_t query) {
  const int64_t at = query + length - shape.queries;
  return shape.left < 0 || at < shape.left ? 0 : at - shape.left;
}

// A call, and how blocks divide its work. A row is a query of one of the heads that share a head of the
// cache; the queries of a head come one after another. A block has up to so many rows.
struct DecodePlan : DecodeCall {
  int64_t group;    // heads that share one
  int64_t of_head;  // rows of a head of the cache
  int64_t tasks;
  Divisor queries;
  Divisor blocks;  // of the rows of a head
  Divisor kv_heads;
  Divisor all_parts;
  Divisor page_size;

  DecodePlan(const DecodeCall& call, int64_t rows)
      : DecodeCall(call),
        group(args.shape.heads / args.shape.kv_heads),
        of_head(group * args.shape.queries),
        tasks(args.shape.batch * parts * args.shape.kv_heads * ((of_head + rows - 1) / rows)),
        queries(at_least_one(args.shape.queries)),
        blocks(at_least_one((of_head + rows - 1) / rows)),
        kv_heads(args.shape.kv_heads),
        all_parts(at_least_one(parts)),
        page_size(at_least_one(args.page_size)) {}

 private:
  static int64_t at_least_one(int64_t value) { return value > 0 ? value : 1; }
};

// What was found for a row of [batch, parts, heads, queries].
template <typename A>
__device__ A* found_at(const DecodeCall& call, int64_t row) {
  return static_cast<A*>(call.found) + row * (kPartHead + call.args.shape.value_size);
}

// Where a key lies. Written by one access.
struct alignas(sizeof(uint4)) Place {
  int64_t slot;
  int32_t page;
  int32_t unused;

  __device__ int64_t in(const Cache& cache, int64_t head) const {
    return page * cache.page + slot * cache.key + head * cache.head;
  }
};

template <typename A, int kRows>
struct PartMemory {
  static constexpr int kSums = kDecodeThreads * 8;
  static constexpr int kQueries = kRows * kDecodeDepth;
  alignas(16) A scores[kRows][kDecodePart];  // then their exponentials
  // Queries, then sums of values.
  alignas(16) A values[kQueries > kSums ? kQueries : kSums];
  Place places[kDecodePart];
};

// Some queries of the heads that share a head of the cache, and a part of the keys.
template <int kRows>
struct PartTask {
  int64_t batch;
  int64_t kv_head;
  int64_t first;      // row of those of the head
  int64_t first_all;  // the same of those of all heads, parts and sequences
  int rows;
  int64_t length;
  int64_t begin;  // its first key
  int from;       // keys that any query sees, from the first one on
  int to;

  __device__ PartTask(const DecodePlan& plan, int64_t index) {
    const auto& shape = plan.args.shape;
    const int64_t beside = plan.blocks.divide(index);
    first = (index - beside * plan.blocks.divisor) * kRows;
    rows = static_cast<int>(plan.of_head - first < kRows ? plan.of_head - first : kRows);
    const int64_t of_sequence = plan.kv_heads.divide(beside);
    kv_head = beside - of_sequence * shape.kv_heads;
    first_all = of_sequence * shape.heads * shape.queries + kv_head * plan.of_head + first;
    batch = plan.all_parts.divide(of_sequence);
    begin = (of_sequence - batch * plan.parts) * kDecodePart;
    length = length_of(plan, batch);
    from = to = 0;
    if (length >= 0 && length <= capacity_of(plan)) {
      from = within(first_key(shape, length, 0));
      to = within(length);
    }
  }

  __device__ int64_t head(const DecodePlan& plan, int row) const {
    return kv_head * plan.group + static_cast<int64_t>(plan.queries.divide(first + row));
  }
  __device__ int64_t query(const DecodePlan& plan, int row) const {
    return first + row - plan.queries.divide(first + row) * plan.queries.divisor;
  }
  __device__ bool sees(const DecodePlan& plan, int row, int slot) const {
    const auto& shape = plan.args.shape;
    const int64_t key = begin + slot;
    const int64_t own = query(plan, row);
    return key >= first_key(shape, length, own) && key <= own + length - shape.queries;
  }
  // How far from its first key, but not outside of the part.
  __device__ int within(int64_t key) const {
    const int64_t at = key - begin;
    return static_cast<int>(at < 0 ? 0 : at < kDecodePart ? at : kDecodePart);
  }
  template <typename A>
  __device__ A* found(const DecodeCall& call, int row) const {
    return found_at<A>(call, first_all + row);
  }
};

// V elements of a row, of which there are `live`; zeros behind them.
template <int V, typename C, typename A>
__device__ void read(const C* from, bool vectors, int64_t live, A (&to)[V]) {
  using Vector = std::conditional_t<V * sizeof(C) == sizeof(uint4), uint4, uint64_t>;
  static_assert(V * sizeof(C) == sizeof(Vector), "whole vectors");
  C elements[V] = {};
  if (vectors && live >= V) {
    FUSEWHEEL_EXPECT_ALIGNED(from, sizeof(Vector));
    const Vector bits = *reinterpret_cast<const Vector*>(from);
    memcpy(elements, &bits, sizeof(bits));
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (i < live) {
        elements[i] = from[i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if constexpr (sizeof(C) == 1) {
      to[i] = elements[i];
    } else {
      to[i] = widen(elements[i]);
    }
  }
}

}  // namespace
}  // namespace fusewheel
