// What a block of attention_decode does with some keys of a sequence: scores, their exponentials, and
// sums of values. Each key and value is read once for all queries of the block.
#pragma once

#include "common/pieces.h"
#include "decode_task.h"

namespace fusewheel {
namespace {

// Loops that take little of the time are not unrolled: unrolled, they were a fifth of the code.

// Over the threads of a key.
template <typename A>
__device__ A across_key(A value) {
#pragma unroll
  for (int distance = kKeyThreads / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// Whether a page that does not exist should hold a key that is seen.
template <int kRows>
__device__ bool find_places(const DecodePlan& call, const PartTask<kRows>& task,
                            Place (&places)[kDecodePart]) {
  int missing = 0;
#pragma unroll 1
  for (int i = task.from + static_cast<int>(threadIdx.x); i < task.to; i += kDecodeThreads) {
    const int64_t key = task.begin + i;
    int64_t page = task.batch;
    int64_t slot = key;
    if (call.args.table != nullptr) {
      const auto entry = static_cast<int64_t>(call.page_size.divide(static_cast<uint64_t>(key)));
      page = call.args.table[task.batch * call.args.entries + entry];
      slot = key - entry * call.args.page_size;
    }
    missing += page < 0 || page >= call.pages;
    const Place place{slot, static_cast<int32_t>(page), 0};
    uint4 bits;
    memcpy(&bits, &place, sizeof(bits));
    reinterpret_cast<uint4&>(places[i]) = bits;
  }
  return row_sum(missing) > 0;
}

// Queries are multiplied by it, and scores divided by it at last: products with codes in int8 would be
// infinite where scores are not.
template <typename C>
constexpr float kQueryUnit = sizeof(C) == 1 ? 1.0f / 65536 : 1;

// Elements [begin, begin + kDecodeDepth) of all queries, in pieces of vectors; zeros where there are
// none.
template <typename C, int V, int kRows, typename A>
__device__ void load_queries(const DecodePlan& call, const PartTask<kRows>& task, int64_t begin,
                             PartMemory<A, kRows>& shared) {
  const auto& shape = call.args.shape;
  const auto& strides = call.args.q_strides;
#pragma unroll 1
  for (int i = threadIdx.x; i < kRows * kDecodeDepth; i += kDecodeThreads) {
    const int row = i / kDecodeDepth;
    const int64_t column = begin + element_at<V, A>(i % kDecodeDepth, kDecodeDepth);
    A value = 0;
    if (row < task.rows && column < shape.size) {
      value = load_one<A>(call.args.q, shape.dtype,
                          task.batch * strides[0] + task.head(call, row) * strides[1] +
                              task.query(call, row) * strides[2] + column) *
              kQueryUnit<C>;
    }
    shared.values[i] = value;
  }
}

// Keys of a thread at a time. float64 is there for checks: its code is small rather than fast.
template <typename A>
constexpr int kDecodeKeys = sizeof(A) == sizeof(double) ? 1 : 2;

// Products of all queries and keys.
template <typename C, int kRows, typename A>
__device__ void multiply_keys(const DecodePlan& call, const PartTask<kRows>& task, bool vectors,
                              PartMemory<A, kRows>& shared) {
  constexpr int V = kKeyLanes<C>;
  constexpr int kOwn = kDecodeKeys<A>;
  static_assert(kRows <= kKeyThreads, "each thread of a key stores the score of a query at most");
  const auto& shape = call.args.shape;
  const int across = static_cast<int>(threadIdx.x) % kKeyThreads;
  for (int64_t begin = 0; begin == 0 || begin < shape.size; begin += kDecodeDepth) {
    const int64_t left = shape.size - begin;
    const int depth = left < kDecodeDepth ? static_cast<int>(left) : kDecodeDepth;
    __syncthreads();  // the queries before have been read
    load_queries<C, V>(call, task, begin, shared);
    __syncthreads();
    for (int at = task.from; at < task.to; at += kOwn * kKeysAtOnce) {
      const C* keys[kOwn];
      int slots[kOwn];
      bool exists[kOwn];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int slot = at + static_cast<int>(threadIdx.x) / kKeyThreads + i * kKeysAtOnce;
        exists[i] = slot < task.to;
        slots[i] = exists[i] ? slot : task.from;
        keys[i] = static_cast<const C*>(call.args.k.data) +
                  shared.places[slots[i]].in(call.args.k, task.kv_head) + begin;
      }
      A dots[kOwn][kRows] = {};
      for (int d = across * V; d < depth; d += kKeyThreads * V) {
        A values[kOwn][V];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          read(keys[i] + d, vectors, exists[i] ? depth - d : 0, values[i]);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          A query[V];
          load_pieces(shared.values + r * kDecodeDepth, d, kDecodeDepth, query);
#pragma unroll
          for (int i = 0; i < kOwn; ++i) {
#pragma unroll
            for (int j = 0; j < V; ++j) {
              dots[i][r] = multiply_add(query[j], values[i][j], dots[i][r]);
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const A dot = across_key(dots[i][r]);
          if (across == r && exists[i]) {
            A& score = shared.scores[r][slots[i]];
            score = begin == 0 ? dot : score + dot;
          }
        }
      }
    }
  }
}

// Products become scores, and these their exponentials relative to the largest. A warp has a query.
template <typename C, int kRows, typename A>
__device__ void take_exponentials(const DecodePlan& call, const PartTask<kRows>& task,
                                  PartMemory<A, kRows>& shared) {
  const auto& shape = call.args.shape;
  const auto scale = static_cast<A>(shape.scale / kQueryUnit<C>);
  const auto softcap = static_cast<A>(shape.softcap);
  const auto* scales = static_cast<const A*>(call.args.k_scales.data);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncthreads();  // the products are there
#pragma unroll 1
  for (int r = threadIdx.x / kWarp; r < task.rows; r += kDecodeThreads / kWarp) {
    A peak = -static_cast<A>(INFINITY);
#pragma unroll 1
    for (int slot = task.from + lane; slot < task.to; slot += kWarp) {
      A score = -static_cast<A>(INFINITY);
      if (task.sees(call, r, slot)) {
        score = shared.scores[r][slot];
        if (shape.is_int8) {
          score *= scales[shared.places[slot].in(call.args.k_scales, task.kv_head)];
        }
        score *= scale;
        score = softcap > 0 ? hyperbolic_tangent(score / softcap) * softcap : score;
      }
      shared.scores[r][slot] = score;
      peak = Larger()(peak, score);
    }
    peak = warp_reduce<Larger>(peak);
    // Where no key is seen, anything finite will do.
    const A base = peak == -static_cast<A>(INFINITY) ? 0 : peak;
    A total = 0;
    for (int slot = task.from + lane; slot < task.to; slot += kWarp) {
      A& score = shared.scores[r][slot];
      score = exponential(score - base);
      total += score;
    }
    total = warp_sum(total);
    if (lane == 0) {
      A* found = task.template found<A>(call, r);
      found[kPartPeak] = peak;
      found[kPartTotal] = total;
    }
  }
}

struct Either {
  __device__ unsigned operator()(unsigned a, unsigned b) const { return a | b; }
};

// Sums of values. Returns, by bits, the queries that see a value which is not finite: it counts as 0
// in the sums, so that it does not reach the queries that do not see it.
template <typename C, int kRows, typename A>
__device__ unsigned add_values(const DecodePlan& call, const PartTask<kRows>& task, bool vectors,
                               PartMemory<A, kRows>& shared) {
  constexpr int V = kValueLanes<C>;
  const auto& shape = call.args.shape;
  const auto* scales = static_cast<const A*>(call.args.v_scales.data);
  int threads = 1;  // of a value
  while (threads < kWarp && threads * V < shape.value_size) {
    threads *= 2;
  }
  const int groups = kDecodeThreads / threads;
  const int across = static_cast<int>(threadIdx.x) % threads;
  const int width = threads * V;
  A* own = shared.values + static_cast<int>(threadIdx.x) / threads * width;
  unsigned odd = 0;
  for (int64_t begin = 0; begin < shape.value_size; begin += width) {
    const int64_t column = begin + across * V;
    A sums[kRows][V] = {};
    __syncthreads();  // the exponentials are there
#pragma unroll kDecodeKeys<A>
    for (int slot = task.from + static_cast<int>(threadIdx.x) / threads; slot < task.to;
         slot += groups) {
      const Place& place = shared.places[slot];
      A values[V];
      read(static_cast<const C*>(call.args.v.data) + place.in(call.args.v, task.kv_head) + column,
           vectors, shape.value_size - column, values);
      const A scale = shape.is_int8 ? scales[place.in(call.args.v_scales, task.kv_head)] : A{1};
      A spoilt = 0;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        values[i] *= scale;
        spoilt += values[i] * 0;
      }
      if (!(spoilt == 0)) {
#pragma unroll 1
        for (int r = 0; r < task.rows; ++r) {
          odd |= static_cast<unsigned>(task.sees(call, r, slot)) << r;
        }
#pragma unroll
        for (int i = 0; i < V; ++i) {
          values[i] = values[i] * 0 == 0 ? values[i] : A{};
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          sums[r][i] = multiply_add(shared.scores[r][slot], values[i], sums[r][i]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      __syncthreads();  // what was there has been read
      store_pieces(own, across * V, width, sums[r]);
      __syncthreads();
#pragma unroll 1
      for (int i = threadIdx.x; i < width; i += kDecodeThreads) {
        A sum = 0;
#pragma unroll 4
        for (int group = 0; group < groups; ++group) {
          sum += shared.values[group * width + i];
        }
        const int64_t at = begin + element_at<V, A>(i, width);
        if (r < task.rows && at < shape.value_size) {
          task.template found<A>(call, r)[kPartHead + at] = sum;
        }
      }
    }
  }
  return row_reduce<Either>(odd);
}

}  // namespace
}  // namespace fusewheel
