// Gradients of attention in bfloat16 by its own products. What a task is, and the order of the sums, is as in
// attention_backward.cpp; shares and slopes are rounded to bfloat16 before they are multiplied.
//
// The gradients of keys and values are summed as [element, key]: then shares and slopes, of which a
// product reads two rows at a time, are made from two rows of scores.

#include "amx_slopes.h"

#if defined(__AVX512F__)

#include "gradients.h"
#include "scores.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

// Scores are made for one step of queries after another.
constexpr int64_t kSteps = kSomeQueries / kStep;
constexpr int64_t kTurned = step_stride(kSomeQueries);
constexpr int64_t kMostKeys = 256;
// With fewer keys than this there would be too few tasks for all threads.
constexpr int64_t kManyKeys = 1024;

// Keys of a task. They are packed once, and the queries for each block of keys.
int64_t keys_of(const AttentionShape& shape) {
  return shape.keys < kManyKeys ? kMostKeys / 2 : kMostKeys;
}

struct Task {
  int64_t block;     // keys
  int64_t q_stride;  // of rows
  int64_t v_stride;
  int64_t q_size;  // whole pairs of tiles
  int64_t v_size;
  int64_t sum_stride;    // of gradients of queries
  int64_t score_stride;  // of scores, and of gradients of keys and values
  // Of the keys
  BFloat16* rows;
  BFloat16* k;  // columns are keys
  BFloat16* v;
  BFloat16* k_elements;  // columns are elements
  float* grad_k;         // [element, key]
  float* grad_v;
  // Of the queries
  BFloat16* q;
  BFloat16* grad;
  BFloat16* q_turned;  // [element, query]
  BFloat16* grad_turned;
  float* grad_q;
  // Of both
  float* scores;
  float* grad_shares;
  float* caps;  // tanh(scores / softcap)
  Slopes made;
  bool marks[kMostKeys];

  Task(const AttentionShape& shape, Scratch& scratch)
      : block(keys_of(shape)), made(block, scratch) {
    q_stride = step_stride(shape.size);
    v_stride = step_stride(shape.value_size);
    q_size = up_to_multiple(shape.size, kPair);
    v_size = up_to_multiple(shape.value_size, kPair);
    sum_stride = FUSEWHEEL_ISA::sum_stride(q_size);
    score_stride = FUSEWHEEL_ISA::sum_stride(block);
    rows = scratch.take<BFloat16>(block * (q_stride > v_stride ? q_stride : v_stride));
    k = scratch.take<BFloat16>(block * q_size);
    v = scratch.take<BFloat16>(block * v_size);
    k_elements = scratch.take<BFloat16>(block * q_size);
    grad_k = scratch.take<float>(q_size * score_stride);
    grad_v = scratch.take<float>(v_size * score_stride);
    q = scratch.take<BFloat16>(kSomeQueries * q_stride);
    grad = scratch.take<BFloat16>(kSomeQueries * v_stride);
    q_turned = scratch.take<BFloat16>(q_size * kTurned);
    grad_turned = scratch.take<BFloat16>(v_size * kTurned);
    grad_q = scratch.take<float>(kSomeQueries * sum_stride);
    scores = scratch.take<float>(kStep * score_stride);
    grad_shares = scratch.take<float>(kStep * score_stride);
    caps = scratch.take<float>(kStep * score_stride);
  }

  Columns keys() const { return {k, q_size * kTile}; }
  Columns values() const { return {v, v_size * kTile}; }
  Columns elements() const { return {k_elements, block * kTile}; }
};

// A step of queries and the keys that they meet.
struct Step {
  int64_t first;  // in the block of queries
  int64_t count;
  Meeting met;
};

// Makes the shares and slopes of a step. Row 0 of the block is query `query`.
FUSEWHEEL_AMX void differentiate_step(const AttentionBackwardArgs& args, const Task& task,
                                      const Exponent& exponent, int64_t batch, int64_t head,
                                      int64_t key, int64_t query, const Step& step) {
  const auto& forward = args.forward;
  const auto& shape = forward.shape;
  const int64_t begin = step.met.begin;
  const int64_t end = step.met.end;
  product(task.q + step.first * task.q_stride, task.q_stride, kStep, task.keys().at(begin, 0),
              end - begin, task.q_size, task.scores + begin, task.score_stride, false);
  product(task.grad + step.first * task.v_stride, task.v_stride, kStep,
              task.values().at(begin, 0), end - begin, task.v_size, task.grad_shares + begin,
              task.score_stride, false);
  const int64_t first = query + step.first;
  const Queries queries = {batch, head, first, step.count};
  const bool exact = step.met.whole && !step.met.biased;
  const bool plain = exact && !exponent.natural && args.dots == nullptr;
  const float* logsumexp = row_values<float>(forward.logsumexp, shape, batch, head) + first;
  const float* delta = row_values<float>(args.delta, shape, batch, head) + first;
  for (int64_t i = 0; i < kStep; i += 2) {
    Row rows[2];
    for (int64_t r = i; r < i + 2; ++r) {
      float* scores = task.scores + r * task.score_stride;
      float* caps = shape.softcap > 0 ? task.caps + r * task.score_stride : nullptr;
      rows[r - i] = {scores, task.grad_shares + r * task.score_stride, caps, 0, 0};
      if (r >= step.count) {  // no query: no share of any key
        for (int64_t j = begin; j < end; j += kTile) {
          store(scores + j, splat(kNothing<float>));
          store(task.grad_shares + r * task.score_stride + j, Vec<float>{});
        }
        continue;
      }
      rows[r - i].base = logsumexp[r] == kNothing<float> ? 0.0f : static_cast<float>(logsumexp[r] * kLog2E);
      rows[r - i].delta = delta[r];
      if (!plain) {
        exponent.apply(scores, begin, end);
        const void* bias = step.met.biased ? queries.bias(forward, r) : nullptr;
        finish_row<float>(forward, bias, key, seen_by(shape, first + r), begin, end, scores, caps);
      }
    }
    const int64_t at = step.first + i;
    if (plain) {
      two_rows<true>(task.made, rows[0], rows[1], exponent.factor, at, begin, end);
    } else {
      two_rows<false>(task.made, rows[0], rows[1], exponent.factor, at, begin, end);
    }
  }
}

// The part of one block of queries; whether they meet a key.
FUSEWHEEL_AMX bool meet(const AttentionBackwardArgs& args, const Task& task,
                        const Exponent& exponent, int64_t batch, int64_t head, int64_t key,
                        int64_t keys, int64_t first, int64_t count) {
  const auto& forward = args.forward;
  const auto& shape = forward.shape;
  const int64_t rows = up_to_multiple(count, kStep);
  Step steps[kSteps];
  bool any = false;
  for (int64_t s = 0; s * kStep < rows; ++s) {
    const int64_t from = s * kStep;
    const int64_t live = count - from < kStep ? count - from : kStep;
    const Seen seen = seen_by_some(shape, first + from, live);
    const Queries queries = {batch, head, first + from, live};
    steps[s] = {from, live, meeting_of(forward, queries, 0, live, seen, key, keys, kPair)};
    any = any || steps[s].met.begin < steps[s].met.end;
  }
  if (!any) {
    return false;
  }
  copy_rows(head_of(forward.q, shape.dtype, batch, head, shape.size), first, count, rows, task.q,
            task.q_stride);
  copy_rows(head_of(args.grad, shape.dtype, batch, head, shape.value_size), first, count, rows,
            task.grad, task.v_stride);
  turn_columns(task.q, task.q_stride, rows, task.q_size, task.q_turned, kTurned);
  turn_columns(task.grad, task.v_stride, rows, task.v_size, task.grad_turned, kTurned);
  for (int64_t s = 0; s * kStep < rows; ++s) {
    const int64_t from = s * kStep;
    const Meeting& met = steps[s].met;
    float* grad_q = task.grad_q + from * task.sum_stride;
    if (met.begin == met.end) {
      __builtin_memset(grad_q, 0, kStep * task.sum_stride * sizeof(float));
      __builtin_memset(task.made.dots + from, 0, kStep * sizeof(float));
      continue;
    }
    differentiate_step(args, task, exponent, batch, head, key, first, steps[s]);
    product(task.made.rows + from * task.made.stride + met.begin, task.made.stride, kStep,
                task.elements().at(0, met.begin), task.q_size, met.end - met.begin, grad_q,
                task.sum_stride, false);
  }
  const auto meets = [&](int64_t s, int64_t column) {
    return s * kStep < rows && steps[s].met.begin <= column && column < steps[s].met.end;
  };
  for (int64_t column = 0; column < keys; column += kPair) {
    for (int64_t s = 0; s * kStep < rows; ++s) {
      const int64_t low = s * kStep;
      while (meets(s, column)) {
        ++s;
      }
      const int64_t depth = s * kStep - low;
      if (depth > 0) {
        product(task.grad_turned + low, kTurned, task.v_size,
                    task.made.share_columns().at(column, low), kPair, depth,
                    task.grad_v + column, task.score_stride, true);
        product(task.q_turned + low, kTurned, task.q_size,
                    task.made.slope_columns().at(column, low), kPair, depth,
                    task.grad_k + column, task.score_stride, true);
      }
    }
  }
  return true;
}

FUSEWHEEL_AMX void backward(const AttentionBackwardTasks& args, int64_t index, void* memory) {
  const auto& forward = args.forward;
  const auto& shape = forward.shape;
  Scratch scratch(memory);
  Task task(shape, scratch);
  const Exponent exponent(forward);
  const Order order(shape, task.block, kSomeQueries);
  const KeyBlock own(shape, order, index);
  const int64_t batch = own.batch, kv_head = own.kv_head, block = own.number;
  const int64_t key = block * task.block;
  const int64_t keys = shape.keys - key < task.block ? shape.keys - key : task.block;
  const int64_t whole = up_to_multiple(keys, kPair);

  const Head v = head_of(forward.v, shape.dtype, batch, kv_head, shape.value_size);
  copy_rows(v, key, keys, whole, task.rows, task.v_stride);
  columns_of_rows(task.rows, task.v_stride, whole, task.v_size, task.v);
  const Head k = head_of(forward.k, shape.dtype, batch, kv_head, shape.size);
  const bool finite = copy_rows(k, key, keys, whole, task.rows, task.q_stride);
  columns_of_rows(task.rows, task.q_stride, whole, task.q_size, task.k);
  if (!finite) {
    // Where such a key is seen, the gradient of its score is no number either.
    clean_rows(task.rows, keys, task.q_stride, task.marks);
  }
  columns_of_columns(task.rows, task.q_stride, whole, task.q_size, task.k_elements,
                     task.elements().tile);
  __builtin_memset(task.grad_k, 0, task.q_size * task.score_stride * sizeof(float));
  __builtin_memset(task.grad_v, 0, task.v_size * task.score_stride * sizeof(float));

  for (int64_t i = order.query_blocks; i-- > 0;) {
    const int64_t first = i * kSomeQueries;
    const int64_t left = shape.queries - first;
    const int64_t count = left < kSomeQueries ? left : kSomeQueries;
    const Range seen = blocks_seen(shape, first, count, task.block);
    if (block < seen.begin || block > seen.end) {
      continue;
    }
    for (int64_t h = kv_head * order.group; h < (kv_head + 1) * order.group; ++h) {
      const bool any = meet(args, task, exponent, batch, h, key, keys, first, count);
      add_grad_q<float>(args, order, own, i, seen,
                        {any ? task.grad_q : nullptr, task.sum_stride, task.made.dots, h, first,
                         count});
    }
  }
  const auto scale = static_cast<float>(shape.scale);
  store_columns(task.grad_k, task.score_stride, keys, scale,
                head_of(args.grad_k, shape.dtype, batch, kv_head, shape.size), key);
  store_columns(task.grad_v, task.score_stride, keys, 1.0f,
                head_of(args.grad_v, shape.dtype, batch, kv_head, shape.value_size), key);
}

}  // namespace

AttentionPlan bfloat16_attention_backward_plan(const AttentionShape& shape) {
  Scratch counter(nullptr);
  const Task task(shape, counter);
  return Order(shape, task.block, kSomeQueries).plan(counter.bytes());
}

FUSEWHEEL_AMX void bfloat16_attention_backward_task(const AttentionBackwardTasks& args,
                                                    int64_t index, void* scratch) {
  if (choices().amx) {
    const Tiles tiles;
    return backward(args, index, scratch);
  }
  backward(args, index, scratch);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX512F__
