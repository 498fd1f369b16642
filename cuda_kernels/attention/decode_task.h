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

template <typename A>
__device__ A* found_at(const DecodeCall& call, int64_t batch, int64_t part, int64_t head,
                       int64_t query) {
  const auto& shape = call.args.shape;
  const int64_t row = ((batch * call.parts + part) * shape.heads + head) * shape.queries + query;
  return static_cast<A*>(call.found) + row * (kPartHead + shape.value_size);
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
  int64_t part;
  int64_t kv_head;
  int64_t first;  // row of those of the head
  int rows;
  int64_t length;
  int64_t begin;  // its first key
  int from;       // keys that any query sees, from the first one on
  int to;

  __device__ PartTask(const DecodeCall& call, int64_t index) {
    const auto& shape = call.args.shape;
    const int64_t all = shape.heads / shape.kv_heads * shape.queries;
    const int64_t blocks = (all + kRows - 1) / kRows;
    first = index % blocks * kRows;
    rows = static_cast<int>(all - first < kRows ? all - first : kRows);
    kv_head = index / blocks % shape.kv_heads;
    part = index / blocks / shape.kv_heads % call.parts;
    batch = index / blocks / shape.kv_heads / call.parts;
    length = length_of(call, batch);
    begin = part * kDecodePart;
    from = to = 0;
    if (length >= 0 && length <= capacity_of(call)) {
      from = within(first_key(shape, length, 0));
      to = within(length);
    }
  }

  __device__ int64_t head(const DecodeShape& shape, int row) const {
    return kv_head * (shape.heads / shape.kv_heads) + (first + row) / shape.queries;
  }
  __device__ int64_t query(const DecodeShape& shape, int row) const {
    return (first + row) % shape.queries;
  }
  __device__ bool sees(const DecodeShape& shape, int row, int slot) const {
    const int64_t key = begin + slot;
    const int64_t own = query(shape, row);
    return key >= first_key(shape, length, own) && key <= own + length - shape.queries;
  }
  // How far from its first key, but not outside of the part.
  __device__ int within(int64_t key) const {
    const int64_t at = key - begin;
    return static_cast<int>(at < 0 ? 0 : at < kDecodePart ? at : kDecodePart);
  }
  template <typename A>
  __device__ A* found(const DecodeCall& call, int row) const {
    return found_at<A>(call, batch, part, head(call.args.shape, row), query(call.args.shape, row));
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
