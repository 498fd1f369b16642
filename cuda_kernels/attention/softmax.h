// The scores of a tile become shares of what has been seen so far.
//
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
#pragma once

#include "scores.h"

namespace fusewheel {
namespace {

// Of a tile as tiles.h has it: which of its elements a thread has.
struct OwnElements {
  static constexpr int kRows = kOwnRows;
  static constexpr int kColumns = kOwnColumns;
  static constexpr int kThreads = kAcross;  // that share a row

  static __device__ int row(int i) { return own_row(i); }
  static __device__ int column(int j) { return own_column(j); }

  template <typename A>
  static __device__ A& at(Tile<A>& tile, int i, int j) {
    return tile[i][j];
  }
  // Calls body(row, column, element) for each of them.
  template <typename A, typename Body>
  static __device__ void for_each(Tile<A>& tile, const Body& body) {
#pragma unroll 1
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        body(row(i), column(j), tile[0][j]);
      }
      turn(tile);
    }
  }
};

// The scores of row i of the thread become shares, relative to the largest score so far; `found` is the
// largest of those that this thread has. Sums from before have to be multiplied by `shrink`.
template <typename Own, typename A, typename Scores>
__device__ void share_scores(Scores& tile, int i, A found, A& peak, A& total, A& shrink) {
  found = warp_reduce<Larger>(found, Own::kThreads);
  const A largest = found > peak ? found : peak;
  // Where no key is seen yet, anything finite will do.
  const A base = largest == kNothing<A> ? 0 : largest;
  shrink = exponential(peak - base);
  peak = largest;
  total *= shrink;
#pragma unroll
  for (int j = 0; j < Own::kColumns; ++j) {
    A& element = Own::at(tile, i, j);
    element = exponential(element - base);
    total += element;
  }
}

// Of the rows that a thread shares with others. `Own` says which elements of a tile are the thread's.
template <typename T, typename Own>
class Softmax {
 public:
  using A = Accumulate<T>;

  // A sink is a score without a value.
  __device__ explicit Softmax(A sink) {
#pragma unroll
    for (int i = 0; i < Own::kRows; ++i) {
      peak_[i] = sink;
      total_[i] = sink == kNothing<A> || !is_first() ? 0 : 1;
    }
  }

  // Makes shares, relative to the largest score so far, of the products of a tile. `marked`: a bit for
  // each column whose value has an element that is not finite. What was added to a row's result before has to
  // be multiplied by `shrink`.
  template <typename Products>
  __device__ void add(const Scores<T>& scores, const Band& band, int64_t first, int64_t key,
                      unsigned marked, Products& tile, A (&shrink)[Own::kRows]) {
    const TileBand visible = band.tile(first, key);
    const bool is_plain = scores.is_plain();
    if (!is_plain) {
      Own::for_each(tile, [&](int row, int column, A& element) {
        A cap = 0;
        element = scores.finish(element, first + row, key + column,
                                visible.span(row).holds(column), cap);
      });
    }
#pragma unroll
    for (int i = 0; i < Own::kRows; ++i) {
      const Span seen = visible.span(Own::row(i));
      A found = kNothing<A>;
#pragma unroll
      for (int j = 0; j < Own::kColumns; ++j) {
        const int column = Own::column(j);
        A& element = Own::at(tile, i, j);
        const A product = is_plain ? element * scores.scale : element;
        const A score = seen.holds(column) ? product : kNothing<A>;
        spoilt_ |= static_cast<unsigned>(marked >> j & 1u && score != kNothing<A>) << i;
        found = score > found ? score : found;
        element = score;
      }
      share_scores<Own>(tile, i, found, peak_[i], total_[i], shrink[i]);
    }
  }

  // What the result of each row is to be divided by. `logsumexp` points to the queries of the head's
  // sequence, null if another block writes it.
  __device__ void finish(const Task& task, A* logsumexp, A (&divisors)[Own::kRows]) const {
    // Of the threads that share rows each takes the logarithm for one row.
    static_assert(Own::kRows <= Own::kThreads, "a thread for each row");
    const int own = static_cast<int>(threadIdx.x) % Own::kThreads;
    A own_peak = 0;
    A own_sum = 0;
    int64_t row = task.own.queries;
#pragma unroll
    for (int i = 0; i < Own::kRows; ++i) {
      const bool no_number =
          task.wrong || warp_reduce<Larger>(spoilt_ >> i & 1u, Own::kThreads) != 0;
      const A sum = warp_reduce<Plus>(total_[i], Own::kThreads);
      if (own == i) {
        own_peak = peak_[i];
        own_sum = sum;
        row = task.first + Own::row(i);
      }
      // Of a query that sees no key, all sums are 0.
      divisors[i] = no_number ? static_cast<A>(NAN) : sum == 0 ? 1 : sum;
    }
    if (logsumexp != nullptr && row < task.own.queries) {
      const A found = own_sum == 0 ? kNothing<A>
                                   : static_cast<A>(static_cast<double>(own_peak) +
                                                    logarithm(static_cast<double>(own_sum)));
      logsumexp[row] = task.wrong ? static_cast<A>(NAN) : found;
    }
  }

 private:
  // Of the threads that share a row.
  static __device__ bool is_first() { return threadIdx.x % Own::kThreads == 0; }

  A peak_[Own::kRows];   // the largest score
  A total_[Own::kRows];  // this thread's part of the sum of exponentials relative to it
  unsigned spoilt_ = 0;  // by row: whether it sees a value that is not finite
};

// What a block of attention reads and writes for its task.
template <typename T>
struct Operands {
  Head<T> q;
  Head<T> k;
  Head<T> v;
  Head<T> out;
  Scores<T> scores;
  Accumulate<T> sink;
  Accumulate<T>* logsumexp;
  const bool* marks;  // of keys whose value is not finite

  __device__ Operands(const AttentionArgs& args, const Task& task)
      : Operands(args, task, task.head / (args.shape.heads / args.shape.kv_heads)) {}

 private:
  __device__ Operands(const AttentionArgs& args, const Task& task, int64_t kv_head)
      : q(args.q, task.batch, task.head, task.own.query, task.own.queries, args.shape.size),
        k(args.k, task.batch, kv_head, task.own.key, task.own.keys, args.shape.size),
        v(args.v, task.batch, kv_head, task.own.key, task.own.keys, args.shape.value_size),
        out(args.out, task.batch, task.head, task.own.query, task.own.queries,
            args.shape.value_size),
        scores(args, task.batch, task.head),
        sink(args.sinks.data == nullptr
                 ? kNothing<Accumulate<T>>
                 : widen(static_cast<const T*>(args.sinks.data)[task.head])),
        logsumexp(row_values<Accumulate<T>>(args.logsumexp, args.shape, task.batch, task.head,
                                            task.own.query)),
        marks(static_cast<const bool*>(args.scratch) +
              (task.batch * args.shape.kv_heads + kv_head) * args.shape.keys + task.own.key) {}
};

}  // namespace
}  // namespace fusewheel
