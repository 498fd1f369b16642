// Gradients of attention: the scores are computed again, from them and the logsumexp the shares
//
// A task is a block of keys and all queries that see it, so that the gradients of these keys and values
// stay with it. It adds its part to the gradient of a block of queries when all later blocks of keys
// have: the sums have one order, whatever thread makes them. Tasks of later keys begin first, so a
// task waits only for tasks that have begun, and all of them take the last queries first.

#include "amx.h"
#include "gradients.h"
#include "scores.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

template <typename A>
struct Task {
  int64_t q_stride;
  int64_t v_stride;
  // Of the keys
  A* k;         // rows
  A* k_panels;  // turned
  A* v_panels;
  A* grad_k;
  A* grad_v;
  // Of the queries
  A* q;  // rows, scaled
  A* grad;
  A* grad_q;
  A* dots;  // of the shares and their gradients
  // Of both
  A* scores;  // then the shares, [queries, keys]
  A* slopes;  // of the scores
  A* caps;    // tanh(scores / softcap)
  bool marks[kKeys];

  Task(const AttentionShape& shape, Scratch& scratch) {
    q_stride = row_stride<A>(shape.size);
    v_stride = row_stride<A>(shape.value_size);
    const int64_t widest = q_stride > v_stride ? q_stride : v_stride;
    k = scratch.take<A>(kKeys * widest);
    k_panels = scratch.take<A>(kKeys * q_stride);
    v_panels = scratch.take<A>(kKeys * v_stride);
    grad_k = scratch.take<A>(kKeys * q_stride);
    grad_v = scratch.take<A>(kKeys * v_stride);
    q = scratch.take<A>(kRows * q_stride);
    grad = scratch.take<A>(kRows * v_stride);
    grad_q = scratch.take<A>(kRows * q_stride);
    dots = scratch.take<A>(kRows);
    scores = scratch.take<A>(kRows * kScoreStride<A>);
    slopes = scratch.take<A>(kRows * kScoreStride<A>);
    caps = scratch.take<A>(kRows * kScoreStride<A>);
  }
};

template <typename A>
void zero(A* values, int64_t count) {
  __builtin_memset(values, 0, count * sizeof(A));
}

// Makes the scores of a row the shares of the keys, and `slopes`, the gradient of the shares, that of
// the scores. Returns the product of the shares and their gradient.
template <typename A>
FUSEWHEEL_INLINE A differentiate(A logsumexp, A delta, const A* caps, int64_t begin, int64_t end,
                                 A* scores, A* slopes) {
  const A base = logsumexp == kNothing<A> ? A{0} : logsumexp;
  Vec<A> dot = {};
  for (int64_t j = begin; j < end; j += kLanes<A>) {
    const Vec<A> score = load(scores + j);
    const Vec<A> share = exp_normal(score - base);
    const Vec<A> grad = load(slopes + j);
    // Of a key that is not seen the value may be infinite.
    const auto hidden = score == kNothing<A>;
    dot += hidden ? Vec<A>{} : share * grad;
    Vec<A> slope = share * (grad - delta);
    if (caps != nullptr) {
      const Vec<A> cap = load(caps + j);
      slope *= 1 - cap * cap;
    }
    store(slopes + j, hidden ? Vec<A>{} : slope);
    store(scores + j, share);
  }
  return sum<A>(dot);
}

// The part of `count` queries; `at` is the place of the first one in its block. Returns whether they meet
// a key.
template <typename A>
bool meet_some(const AttentionBackwardArgs& args, const Task<A>& task, int64_t batch, int64_t head,
               int64_t key, int64_t keys, int64_t first, int64_t at, int64_t count) {
  const auto& forward = args.forward;
  const auto& shape = forward.shape;
  const int64_t rows = up_to_multiple(count, kFewRows);
  const Queries queries = {batch, head, first, count};
  const Meeting met = meeting_of(forward, queries, 0, count, seen_by_some(shape, first, count), key,
                                 keys, kPanel<A>);
  const int64_t begin = met.begin;
  const int64_t end = met.end;
  A* grad_q = task.grad_q + at * task.q_stride;
  if (begin == end) {
    zero(grad_q, rows * task.q_stride);
    zero(task.dots + at, count);
    return false;
  }
  load_rows<A>(head_of(forward.q, shape.dtype, batch, head, shape.size), first, count,
               static_cast<A>(shape.scale), task.q, task.q_stride);
  load_rows<A>(head_of(args.grad, shape.dtype, batch, head, shape.value_size), first, count, A{1},
               task.grad, task.v_stride);
  zero(task.q + count * task.q_stride, (rows - count) * task.q_stride);
  zero(task.grad + count * task.v_stride, (rows - count) * task.v_stride);
  products_of(task.q, task.q_stride, rows, task.k_panels, shape.size, begin, end, task.scores);
  products_of(task.grad, task.v_stride, rows, task.v_panels, shape.value_size, begin, end,
              task.slopes);
  A* caps = shape.softcap > 0 ? task.caps : nullptr;
  const A* logsumexp = row_values<A>(forward.logsumexp, shape, batch, head) + first;
  const A* delta = row_values<A>(args.delta, shape, batch, head) + first;
  for (int64_t i = 0; i < count; ++i) {
    A* scores = task.scores + i * kScoreStride<A>;
    const void* bias = met.biased ? queries.bias(forward, i) : nullptr;
    A* own = caps == nullptr ? nullptr : caps + i * kScoreStride<A>;
    if (!met.whole || met.biased || caps != nullptr) {
      finish_row<A>(forward, bias, key, seen_by(shape, first + i), begin, end, scores, own);
    }
    task.dots[at + i] = differentiate(logsumexp[i], delta[i], own, begin, end, scores,
                                 task.slopes + i * kScoreStride<A>);
  }
  const int64_t columns = up_to_multiple(end - begin, kFewRows);
  zero(task.scores + count * kScoreStride<A>, (rows - count) * kScoreStride<A>);
  zero(task.slopes + count * kScoreStride<A>, (rows - count) * kScoreStride<A>);
  product<A, true>(task.scores + begin, kScoreStride<A>, columns, task.grad, task.v_stride,
                   kPanel<A>, panels_of<A>(shape.value_size), count,
                   task.grad_v + begin * task.v_stride, task.v_stride, true);
  product<A, true>(task.slopes + begin, kScoreStride<A>, columns, task.q, task.q_stride, kPanel<A>,
                   panels_of<A>(shape.size), count, task.grad_k + begin * task.q_stride,
                   task.q_stride, true);
  product<A, false>(task.slopes + begin, kScoreStride<A>, rows, task.k + begin * task.q_stride,
                    task.q_stride, kPanel<A>, panels_of<A>(shape.size), end - begin, grad_q,
                    task.q_stride, false);
  return true;
}

// The part of one block of queries; whether they meet a key.
template <typename A>
bool meet(const AttentionBackwardArgs& args, const Task<A>& task, int64_t batch, int64_t head,
          int64_t key, int64_t keys, int64_t first, int64_t count) {
  const auto& shape = args.forward.shape;
  const bool whole = seen_by_some(shape, first, count).is_whole(key, keys);
  const int64_t step = whole ? kRows : kEdgeRows;
  bool any = false;
  for (int64_t at = 0; at < count; at += step) {
    const int64_t some = count - at < step ? count - at : step;
    any |= meet_some(args, task, batch, head, key, keys, first + at, at, some);
  }
  return any;
}

template <typename A>
void backward(const AttentionBackwardTasks& args, int64_t index, void* memory) {
  const auto& forward = args.forward;
  const auto& shape = forward.shape;
  Scratch scratch(memory);
  Task<A> task(shape, scratch);
  const Order order(shape, kKeys, kRows);
  const KeyBlock own(shape, order, index);
  const int64_t batch = own.batch, kv_head = own.kv_head, block = own.number;
  const int64_t key = block * kKeys;
  const int64_t keys = shape.keys - key < kKeys ? shape.keys - key : kKeys;

  const Head v = head_of(forward.v, shape.dtype, batch, kv_head, shape.value_size);
  load_rows<A>(v, key, keys, A{1}, task.k, task.v_stride);
  zero(task.k + keys * task.v_stride, (kKeys - keys) * task.v_stride);
  turn(task.k, task.v_stride, shape.value_size, task.v_panels);
  const Head k = head_of(forward.k, shape.dtype, batch, kv_head, shape.size);
  load_rows<A>(k, key, keys, A{1}, task.k, task.q_stride);
  const bool finite = is_finite(task.k, keys, task.q_stride);
  zero(task.k + keys * task.q_stride, (kKeys - keys) * task.q_stride);
  turn(task.k, task.q_stride, shape.size, task.k_panels);
  if (!finite) {
    // Where such a key is seen, the gradient of its score is no number either.
    clean_rows(task.k, keys, task.q_stride, task.marks);
  }
  zero(task.grad_k, kKeys * task.q_stride);
  zero(task.grad_v, kKeys * task.v_stride);

  for (int64_t i = order.query_blocks; i-- > 0;) {
    const int64_t first = i * kRows;
    const int64_t count = shape.queries - first < kRows ? shape.queries - first : kRows;
    const Range seen = blocks_seen(shape, first, count, kKeys);
    if (block < seen.begin || block > seen.end) {
      continue;
    }
    for (int64_t h = kv_head * order.group; h < (kv_head + 1) * order.group; ++h) {
      const bool any = meet(args, task, batch, h, key, keys, first, count);
      add_grad_q<A>(args, order, own, i, seen,
                    {any ? task.grad_q : nullptr, task.q_stride, task.dots, h, first, count});
    }
  }
  store_rows(task.grad_k, task.q_stride, keys, A{1},
             head_of(args.grad_k, shape.dtype, batch, kv_head, shape.size), key);
  store_rows(task.grad_v, task.v_stride, keys, A{1},
             head_of(args.grad_v, shape.dtype, batch, kv_head, shape.value_size), key);
}

}  // namespace

AttentionPlan attention_backward_plan(const AttentionShape& shape) {
  if constexpr (kHasAmx) {
    if (multiplies_bfloat16(shape)) {
      return bfloat16_attention_backward_plan(shape);
    }
  }
  Scratch counter(nullptr);
  for_dtype(shape.dtype, [&](auto zero) { Task<Accumulate<decltype(zero)>>(shape, counter); });
  return Order(shape, kKeys, kRows).plan(counter.bytes());
}

void attention_backward_task(const AttentionBackwardTasks& args, int64_t index, void* scratch) {
  if constexpr (kHasAmx) {
    if (multiplies_bfloat16(args.forward.shape)) {
      return bfloat16_attention_backward_task(args, index, scratch);
    }
  }
  return args.forward.shape.dtype == Dtype::kFloat64 ? backward<double>(args, index, scratch)
                                                     : backward<float>(args, index, scratch);
}

}  // namespace fusewheel::FUSEWHEEL_ISA
