// Where the gradients of attention go: those of queries from one block of keys after another.
#pragma once

#include "tiles.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Rows [0, count) times `factor` to a head of a tensor.
template <typename A>
void store_rows(const A* rows, int64_t stride, int64_t count, A factor, const Head& head,
                int64_t first) {
  for_dtype_in<A>(head.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < count; ++i) {
      T* to = static_cast<T*>(const_cast<void*>(head.data)) + (first + i) * head.row;
      for_each_vector<A>(head.size, [&](int64_t j, int64_t live) {
        store(to + j, load(rows + i * stride + j) * factor, live);
      });
    }
  });
}

// Blocks of `size` keys that a block of queries meets, both ends included.
FUSEWHEEL_INLINE Range blocks_seen(const AttentionShape& shape, int64_t first, int64_t count,
                                   int64_t size) {
  const int64_t end = seen_by(shape, first + count - 1).end;
  return {seen_by(shape, first).begin / size, end > 0 ? (end - 1) / size : -1};
}

// The order of the tasks of the backward pass, and where they find the sums of grad_q. Some heads of
// keys begin together, those of the next ones follow. In half types the heads that are together share
// the memory for the rests of their sums with all that follow: each block of queries changes hands when
// its gradient is complete.
struct Order {
  int64_t key_blocks;
  int64_t query_blocks;
  int64_t group;
  int64_t heads;     // of keys, in all sequences
  int64_t together;  // of these
  int64_t queries;
  int64_t rest_stride;  // between rows of rests, 0 without

  // Blocks of queries that are worked on at a time, at least: enough for any number of threads.
  static constexpr int64_t kOpen = 128;

  Order(const AttentionShape& shape, int64_t block_keys, int64_t block_queries)
      : key_blocks(blocks_of(shape.keys, block_keys)),
        query_blocks(blocks_of(shape.queries, block_queries)),
        group(shape.heads / shape.kv_heads),
        heads(shape.batch * shape.kv_heads),
        together(heads),
        queries(shape.queries),
        rest_stride(0) {
    if (bytes_of(shape.dtype) == 2) {
      const int64_t enough = blocks_of(kOpen, group * query_blocks > 0 ? group * query_blocks : 1);
      together = enough < heads ? enough : heads;
      rest_stride = up_to_multiple(shape.size, kLanes<float>);
    }
  }

  AttentionPlan plan(int64_t scratch_bytes) const {
    return {heads * key_blocks, scratch_bytes, together * group * query_blocks,
            together * group * queries * rest_stride};
  }
};

// A block of keys of one head, and its place among the tasks.
struct KeyBlock {
  int64_t batch;
  int64_t kv_head;
  int64_t number;
  int64_t slot;    // among the heads that are together
  int64_t before;  // heads that had the slot

  // Of blocks of one head later ones begin: a task waits only for tasks that have begun.
  KeyBlock(const AttentionShape& shape, const Order& order, int64_t index) {
    before = index / (order.together * order.key_blocks);
    const int64_t first = before * order.together;
    const int64_t left = order.heads - first;
    const int64_t beside = left < order.together ? left : order.together;
    const int64_t own = index - first * order.key_blocks;
    slot = own % beside;
    number = order.key_blocks - 1 - own / beside;
    batch = (first + slot) / shape.kv_heads;
    kv_head = (first + slot) % shape.kv_heads;
  }
};

// A sum that is not complete: in the result, if that has as many bits.
template <typename A, typename T>
FUSEWHEEL_INLINE Vec<A> load_sum(const T* to, const uint16_t* rest, int64_t live) {
  if constexpr (sizeof(T) == sizeof(A)) {
    return load(to, live);
  } else {
    Half high = {};
    Half low;
    __builtin_memcpy(&high, to, static_cast<uint64_t>(live) * sizeof(T));
    __builtin_memcpy(&low, rest, sizeof(low));
    return bit_cast<Vec<A>>(__builtin_convertvector(high, Bits) << 16 |
                            __builtin_convertvector(low, Bits));
  }
}
template <typename A, typename T>
FUSEWHEEL_INLINE void store_sum(T* to, uint16_t* rest, Vec<A> value, int64_t live) {
  if constexpr (sizeof(T) == sizeof(A)) {
    store(to, value, live);
  } else {
    const Bits bits = bit_cast<Bits>(value);
    const Half high = __builtin_convertvector(bits >> 16, Half);
    const Half low = __builtin_convertvector(bits & 0xffff, Half);
    __builtin_memcpy(to, &high, static_cast<uint64_t>(live) * sizeof(T));
    __builtin_memcpy(rest, &low, sizeof(low));
  }
}

// What a block of keys adds to the gradients of some queries.
template <typename A>
struct Addition {
  const A* rows;  // null where the queries see none of these keys
  int64_t stride;
  const A* dots;
  int64_t head;
  int64_t first;  // query
  int64_t count;
};

// Adds a part when it is this block's turn; the last one of a block of queries, which sees blocks of
// keys `seen`, rounds the sums.
template <typename A>
void add_grad_q(const AttentionBackwardTasks& args, const Order& order, const KeyBlock& block,
                int64_t query_block, Range seen, const Addition<A>& part) {
  const auto& shape = args.forward.shape;
  const int64_t row = block.slot * order.group + part.head % order.group;
  const int64_t own = seen.end - block.number;
  int32_t* reached = args.turns + row * order.query_blocks + query_block;
  const auto ready = static_cast<int32_t>(block.before * (seen.end - seen.begin + 1) + own);
  while (__atomic_load_n(reached, __ATOMIC_ACQUIRE) != ready) {
    args.yield();
  }
  const bool is_last = block.number == seen.begin;
  const bool changes = part.rows != nullptr || own == 0 || is_last;
  const Head to = head_of(args.grad_q, shape.dtype, block.batch, part.head, shape.size);
  for_dtype_in<A>(shape.dtype, [&](auto zero) {
    using T = decltype(zero);
    const A scale = static_cast<A>(shape.scale);
    for (int64_t i = 0; changes && i < part.count; ++i) {
      T* sums = static_cast<T*>(const_cast<void*>(to.data)) + (part.first + i) * to.row;
      uint16_t* rests = args.rests + (row * order.queries + part.first + i) * order.rest_stride;
      for_each_vector<A>(shape.size, [&](int64_t j, int64_t live) {
        Vec<A> value = {};
        if (part.rows != nullptr) {
          value = load(part.rows + i * part.stride + j);
        }
        if (own > 0) {
          value += load_sum<A>(sums + j, rests + j, live);
        }
        if (is_last) {
          store(sums + j, value * scale, live);
        } else {
          store_sum<A>(sums + j, rests + j, value, live);
        }
      });
    }
  });
  A* dots = row_values<A>(args.dots, shape, block.batch, part.head) + part.first;
  for (int64_t i = 0; args.dots != nullptr && part.rows != nullptr && i < part.count; ++i) {
    dots[i] += part.dots[i];
  }
  __atomic_store_n(reached, ready + 1, __ATOMIC_RELEASE);
}

}  // namespace fusewheel::FUSEWHEEL_ISA
