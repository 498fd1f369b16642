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

// Adds rows to the gradient of queries, and to their `dots`, when it is this block's turn; the last one
// rounds it.
template <typename A>
void add_grad_q(const AttentionBackwardTasks& args, const A* rows, int64_t stride,
                const A* own_dots, int64_t batch, int64_t head, int64_t first, int64_t count,
                int32_t* turn, int32_t own, bool is_last) {
  const auto& shape = args.forward.shape;
  while (__atomic_load_n(turn, __ATOMIC_ACQUIRE) != own) {
    args.yield();
  }
  A* sums = static_cast<A*>(args.sums) +
            ((batch * shape.heads + head) * shape.all_queries + first) * shape.size;
  const Head to = head_of(args.grad_q, shape.dtype, batch, head, shape.size);
  for (int64_t i = 0; i < count; ++i) {
    for_each_vector<A>(shape.size, [&](int64_t j, int64_t live) {
      Vec<A> value = load(rows + i * stride + j);
      if (own > 0) {
        value += load(sums + i * shape.size + j, live);
      }
      store(sums + i * shape.size + j, value, live);
    });
  }
  A* dots = row_values<A>(args.dots, shape, batch, head) + first;
  for (int64_t i = 0; args.dots != nullptr && i < count; ++i) {
    dots[i] += own_dots[i];
  }
  if (is_last) {
    store_rows(sums, shape.size, count, static_cast<A>(shape.scale), to, first);
  }
  __atomic_store_n(turn, own + 1, __ATOMIC_RELEASE);
}

}  // namespace fusewheel::FUSEWHEEL_ISA
