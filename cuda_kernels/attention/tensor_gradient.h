// A task of the gradients of attention in half types, by tensor cores.
//
// A block owns a tile of queries, or of keys with their values, a warp 16 of its rows; they meet the
// others strip by strip. Both kinds of task compute the scores and the gradients of the shares again.
//
// Dao, "FlashAttention-2" (2023): what a warp has computed stays in its registers as a left factor.
#pragma once

#include "tensor_strips.h"

namespace fusewheel {
namespace {

template <typename T, int D, bool kByQuery>
class TensorGradient {
 public:
  __device__ static TensorTask& task_of(T* shared) {
    T* strips = shared + 2 * kHalfTile<D> + kStages<D> * kStageElements<D>;
    return *reinterpret_cast<TensorTask*>(reinterpret_cast<Query<float>*>(strips) +
                                          kStages<D> * kStrip);
  }

  __device__ TensorGradient(const AttentionBackwardArgs& args, T* shared)
      : args_(args),
        shape_(args.forward.shape),
        task_(task_of(shared).task),
        band_(task_of(shared).band),
        group_(static_cast<int>(shape_.heads / shape_.kv_heads)),
        kv_head_(static_cast<int>(task_.head) / (kByQuery ? group_ : 1)),
        begin_(static_cast<int>(band_.begin(task_.first) / kStrip)),
        end_(task_.wrong ? 0 : strips_before(band_.end(band_.last(task_.first)))),
        begin_head_(static_cast<int>(task_.head) * (kByQuery ? 1 : group_)),
        end_head_(begin_head_ + (kByQuery ? 1 : group_)),
        shared_(shared) {}

  // With `careful`, keys that are not finite are taken to be zero where they are added; otherwise they
  // spoil the gradients of all queries. Returns whether a result is not finite.
  __device__ bool add(bool careful) {
    Place at{begin_head_, begin_};
    begin_tile<D>(kByQuery ? queries(at.head) : keys(), task_.first, shared_);
    begin_tile<D>(kByQuery ? grads(at.head) : values(), task_.first, shared_ + kHalfTile<D>);
    Query<float> own[WarpElements::kRows] = {};
    if constexpr (kByQuery) {
      const Queries<float> of(args_, task_, at.head);
#pragma unroll
      for (int i = 0; i < WarpElements::kRows; ++i) {
        own[i] = of[task_.first + WarpElements::row(i)];
      }
    }
    if (begin_ < end_) {
      begin_stage(at, 0);
      keep_query(query_of_thread(at), 0);
    }
    end_group_of_copies();
    int stage = 0;
    while (begin_ < end_ && at.head < end_head_) {
      wait_for_copies<0>();
      __syncthreads();  // the strip has come; the one before has been read
      const int after = (stage + 1) % kStages<D>;
      Place next = at;
      Query<float> coming{};
      if (kStages<D> > 1) {
        next = begin_next(at, after, coming);
      }
      add_stage(at, stage, own, careful);
      if (kStages<D> == 1) {
        __syncthreads();  // the strip has been read
        next = begin_next(at, after, coming);
      }
      keep_query(coming, after);
      at = next;
      stage = after;
    }
    wait_for_copies<0>();  // where nothing is met
    __syncthreads();       // the results take the place of the block's own tiles
    float odd = 0;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        odd += first_[n][i] * 0;
      }
    }
    return odd != 0;
  }

  __device__ void store() {
    const View& view = kByQuery ? args_.grad_q : args_.grad_k;
    const float scale = task_.wrong ? NAN : static_cast<float>(shape_.scale);
    store_own(view, shape_.size, shared_, first_, scale);
    if constexpr (!kByQuery) {
      store_own(args_.grad_v, shape_.value_size, shared_ + kHalfTile<D>, second_,
                task_.wrong ? NAN : 1.0f);
    }
    if (kByQuery && args_.dots != nullptr) {
      float* dots = row_values<float>(args_.dots, shape_, task_.batch, task_.head, task_.own.query);
#pragma unroll
      for (int i = 0; i < WarpElements::kRows; ++i) {
        const float dot = warp_reduce<Plus>(dots_[i], WarpElements::kThreads);
        const int64_t query = task_.first + WarpElements::row(i);
        if (WarpElements::column(0) == 0 && query < task_.own.queries) {
          dots[query] = task_.wrong ? NAN : dot;
        }
      }
    }
  }

 private:
  using Sums = float[D / 8][4];

  static __device__ int strips_before(int64_t row) {
    return static_cast<int>((row + kStrip - 1) / kStrip);
  }

  __device__ Head<T> by_queries(const View& view, int64_t head, int64_t size) const {
    return {view, task_.batch, head, task_.own.query, task_.own.queries, size};
  }
  __device__ Head<T> by_keys(const View& view, int64_t size) const {
    return {view, task_.batch, kv_head_, task_.own.key, task_.own.keys, size};
  }
  __device__ Head<T> queries(int64_t head) const {
    return by_queries(args_.forward.q, head, shape_.size);
  }
  __device__ Head<T> grads(int64_t head) const {
    return by_queries(args_.grad, head, shape_.value_size);
  }
  __device__ Head<T> keys() const { return by_keys(args_.forward.k, shape_.size); }
  __device__ Head<T> values() const { return by_keys(args_.forward.v, shape_.value_size); }

  __device__ T* strips(int stage) const {
    return shared_ + 2 * kHalfTile<D> + stage * kStageElements<D>;
  }
  __device__ Query<float>* queries_of(int stage) const {
    return reinterpret_cast<Query<float>*>(strips(kStages<D>)) + stage * kStrip;
  }

  // The strip of keys and values, or of queries and their gradients.
  __device__ void begin_stage(const Place& place, int stage) const {
    T* strip = strips(stage);
    begin_tile<D, kStrip>(kByQuery ? keys() : queries(place.head), place.first(), strip);
    begin_tile<D, kStrip>(kByQuery ? values() : grads(place.head), place.first(),
                          strip + kStripElements<D>);
  }

  // The strip after `at`, if there is one, and what the thread has to know of it.
  __device__ Place begin_next(const Place& at, int stage, Query<float>& coming) const {
    Place next{at.head, at.strip + 1};
    if (next.strip >= end_) {
      next = {at.head + 1, begin_};
    }
    if (next.head < end_head_) {
      begin_stage(next, stage);
      end_group_of_copies();
      coming = query_of_thread(next);
    }
    return next;
  }

  // Keys meet queries. Each thread of the first warp reads what is known of one of the next strip, while
  // the block multiplies.
  __device__ Query<float> query_of_thread(const Place& place) const {
    return !kByQuery && threadIdx.x < kStrip
               ? Queries<float>(args_, task_, place.head)[place.first() + threadIdx.x]
               : Query<float>{};
  }
  __device__ void keep_query(const Query<float>& query, int stage) const {
    if (!kByQuery && threadIdx.x < kStrip) {
      uint64_t bits;  // one access
      memcpy(&bits, &query, sizeof(bits));
      reinterpret_cast<uint64_t*>(queries_of(stage))[threadIdx.x] = bits;
    }
  }

  __device__ void add_stage(const Place& at, int stage, const Query<float> (&own)[2], bool careful) {
    T* strip = strips(stage);
    StripScores shares = {};
    StripScores slopes = {};  // at first the gradients of the shares
    multiply_strip<D>(shared_, strip, shares);
    multiply_strip<D>(shared_ + kHalfTile<D>, strip + kStripElements<D>, slopes);
    const Scores<T> scores(args_.forward, task_.batch, at.head);
    const TileBand visible = band_.tile(task_.first, at.first());
    // What the others need would take registers from all.
    if (scores.is_plain()) {
#pragma unroll
      for (int n = 0; n < kStripTiles; ++n) {
        weigh<true>(scores, visible, at, n, stage, own, shares[n], slopes[n]);
      }
    } else {
#pragma unroll 1
      for (int n = 0; n < kStripTiles; ++n) {
        weigh<false>(scores, visible, at, n, stage, own, shares[0], slopes[0]);
        turn(shares);
        turn(slopes);
      }
    }
    if constexpr (!kByQuery) {
      add_columns<D>(shares, strip + kStripElements<D>, second_);
    }
    if (kByQuery && careful) {
      __syncthreads();  // the keys have been read
      clean_tile<D, kStrip>(strip);
      __syncthreads();
    }
    add_columns<D>(slopes, strip, first_);
  }

  // Of tile n of the strip: products become shares, and the gradients of shares those of products.
  template <bool is_plain>
  __device__ void weigh(const Scores<T>& scores, const TileBand& visible, const Place& at, int n,
                        int stage, const Query<float> (&own)[2], float (&shares)[4],
                        float (&slopes)[4]) {
    // Where the bias has this thread's first element, and how far apart the others are: places of all of
    // them would take too many registers.
    const int64_t row_stride = kByQuery ? scores.query_stride : scores.key_stride;
    const int64_t column_stride = kByQuery ? scores.key_stride : scores.query_stride;
    const int64_t bias = (task_.first + WarpElements::row(0)) * row_stride +
                         (at.first() + WarpElements::column(2 * n)) * column_stride;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = WarpElements::column(2 * n + j);
      const Query<float> met = kByQuery ? Query<float>{} : queries_of(stage)[column];
#pragma unroll
      for (int i = 0; i < WarpElements::kRows; ++i) {
        const bool is_visible = visible.span(WarpElements::row(i)).holds(column);
        const Query<float> query = kByQuery ? own[i] : met;
        float& share = shares[2 * i + j];
        float& slope = slopes[2 * i + j];
        float score = is_visible ? share * scores.scale : kNothing<float>;
        float cap = 0;
        if constexpr (!is_plain) {
          score = scores.finish(share, bias + 8 * i * row_stride + j * column_stride, is_visible, cap);
        }
        // Of a key that is not seen the value may be infinite.
        const bool seen = score != kNothing<float>;
        const float gradient = slope;
        share = seen ? exponential(score - query.base) : 0;
        slope = seen ? share * (gradient - query.delta) * (1 - cap * cap) : 0;
        if constexpr (kByQuery) {
          dots_[i] += seen ? share * gradient : 0;
        }
      }
    }
  }

  __device__ void store_own(const View& view, int64_t size, T* tile, const Sums& sums,
                            float scale) const {
    const Head<T> to = kByQuery ? by_queries(view, task_.head, size) : by_keys(view, size);
    store_rows<D>(to, task_.first, sums, tile, [&](int, float value) { return value * scale; });
  }

  const AttentionBackwardArgs& args_;
  const AttentionShape& shape_;
  const Task& task_;
  const Band& band_;
  int group_;
  int kv_head_;
  int begin_;  // of the strips that are met
  int end_;
  int begin_head_;
  int end_head_;
  T* shared_;
  Sums first_ = {};   // gradients of queries, or of keys
  Sums second_ = {};  // of values
  float dots_[WarpElements::kRows] = {};  // of the shares and their gradients
};

}  // namespace
}  // namespace fusewheel
