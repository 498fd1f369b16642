// Attention: the result of a query grows with each tile of keys
//
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).

#include "packing.h"
#include "scores.h"

namespace fusewheel {
namespace {

// Marks the keys whose value has an element that is not finite. A warp has a key.
template <typename T>
__global__ void mark_values(const __grid_constant__ AttentionArgs args, int64_t count) {
  const auto& shape = args.shape;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < count;
       row += warps) {
    const int64_t key = row % shape.keys;
    const int64_t head = row / shape.keys % shape.kv_heads;
    const int64_t batch = row / shape.keys / shape.kv_heads;
    const Head<T> v(args.v, batch, head, 0, shape.keys, shape.value_size);
    Accumulate<T> odd = 0;
    for (int64_t i = threadIdx.x; i < v.size; i += kWarp) {
      odd += widen(v.data[key * v.row + i * v.element]) * 0;
    }
    odd = warp_sum(odd);
    if (threadIdx.x == 0) {
      static_cast<bool*>(args.scratch)[row] = !(odd == 0);
    }
  }
}

template <typename T, int groups>
__global__ void __launch_bounds__(kTileThreads)
    attend(const __grid_constant__ AttentionArgs args, const __grid_constant__ Division division) {
  using A = Accumulate<T>;
  const auto& shape = args.shape;
  FUSEWHEEL_DYNAMIC_SHARED(A, shared);
  A* weights = shared + 2 * kSlice<A>;
  for (int64_t index = blockIdx.x; index < division.tasks; index += gridDim.x) {
    const Task task(division, shape, index);
    if (!task.exists) {
      continue;
    }
    const Sequence& own = task.own;
    const Band band = by_query(own, shape);
    const int64_t kv_head = task.head / (shape.heads / shape.kv_heads);
    const Head<T> q(args.q, task.batch, task.head, own.query, own.queries, shape.size);
    const Head<T> k(args.k, task.batch, kv_head, own.key, own.keys, shape.size);
    const Head<T> v(args.v, task.batch, kv_head, own.key, own.keys, shape.value_size);
    const auto* marks = static_cast<const bool*>(args.scratch) +
                        (task.batch * shape.kv_heads + kv_head) * shape.keys + own.key;
    const Scores<T> scores(args, task.batch, task.head);
    const int64_t column = task.part * kResultColumns<A, groups>;
    const A sink = args.sinks.data == nullptr
                       ? kNothing<A>
                       : widen(static_cast<const T*>(args.sinks.data)[task.head]);
    A peak[kOwnRows];   // the largest score
    A total[kOwnRows];  // this thread's part of the sum of exponentials relative to it
    unsigned spoilt = 0;  // by row: whether it sees a value that is not finite
    Result<A, groups> result = {};
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      peak[i] = sink;
      total[i] = sink == kNothing<A> || own_column(0) > 0 ? 0 : 1;
    }

    const int64_t end = task.wrong ? 0 : band.end(band.last(task.first));
    for (int64_t key = band.begin(task.first) / kTile * kTile; key < end; key += kTile) {
      Tile<A> tile;
      multiply_rows(q, task.first, k, key, shared, tile);
      const bool whole = band.sees_all(task.first, key);
      bool marked[kOwnColumns];
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) {
        marked[j] = key + own_column(j) < own.keys && marks[key + own_column(j)];
      }
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        const int64_t row = task.first + own_row(i);
        A found = kNothing<A>;
#pragma unroll
        for (int j = 0; j < kOwnColumns; ++j) {
          const int64_t at = key + own_column(j);
          A cap = 0;
          const A score = scores.finish(tile[i][j], row, at, whole || band.sees(row, at), cap);
          spoilt |= static_cast<unsigned>(marked[j] && score != kNothing<A>) << i;
          found = score > found ? score : found;
          tile[i][j] = score;
        }
        found = across<Larger>(found);
        const A largest = found > peak[i] ? found : peak[i];
        // Where no key is seen yet, anything finite will do.
        const A base = largest == kNothing<A> ? 0 : largest;
        const A shrink = exponential(peak[i] - base);
        peak[i] = largest;
        total[i] *= shrink;
#pragma unroll
        for (int j = 0; j < kOwnColumns; ++j) {
          tile[i][j] = exponential(tile[i][j] - base);
          total[i] += tile[i][j];
        }
#pragma unroll
        for (int g = 0; g < groups; ++g) {
#pragma unroll
          for (int m = 0; m < kLanes<A>; ++m) {
            result[i][g][m] *= shrink;
          }
        }
      }
      share(tile, weights);
      add_products<true>(weights, v, key, column, shared, result);
    }

#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const bool no_number = task.wrong || across<Larger>(spoilt >> i & 1u) != 0;
      const A sum = across<Plus>(total[i]);
      const int64_t row = task.first + own_row(i);
      if (task.part == 0 && own_column(0) == 0 && row < own.queries) {
        const A logsumexp = sum == 0 ? kNothing<A>
                                     : static_cast<A>(static_cast<double>(peak[i]) +
                                                      logarithm(static_cast<double>(sum)));
        row_values<A>(args.logsumexp, shape, task.batch, task.head, own.query)[row] =
            task.wrong ? static_cast<A>(NAN) : logsumexp;
      }
      // Of a query that sees no key, all sums are 0.
      total[i] = no_number ? static_cast<A>(NAN) : sum == 0 ? 1 : sum;
    }
    const Head<T> out(args.out, task.batch, task.head, own.query, own.queries, shape.value_size);
    store_result<groups>(out, task.first, column, result,
                         [&](int i, A value) { return value / total[i]; });
  }
}

void launch_attend(const char* op, const AttentionArgs& args, const PackedRows& packed,
                   Stream stream) {
  const auto& shape = args.shape;
  for_tiles(shape.dtype, shape.value_size, [&](auto zero, auto groups) {
    using T = decltype(zero);
    using A = Accumulate<T>;
    constexpr int kWarps = 8;
    const int64_t values = attention_scratch_bytes(shape);
    launch(op, mark_values<T>, blocks_for(values, kWarps), dim3(kWarp, kWarps), 0, stream, args,
           values);
    constexpr int kColumns = kResultColumns<A, decltype(groups)::value>;
    const Division division(shape.batch, shape.heads, shape.queries, shape.value_size, kColumns,
                            packed.queries);
    launch(op, attend<T, decltype(groups)::value>, blocks_for(division.tasks, 1), kTileThreads,
           kTileBytes<A>, stream, args, division);
  });
}

}  // namespace

int64_t attention_scratch_bytes(const AttentionShape& shape) {
  return shape.batch * shape.kv_heads * shape.keys;
}

int64_t packing_scratch_bytes(int64_t sequences) { return PackingMemory::bytes(sequences); }

void attention_launch(const AttentionArgs& args, Stream stream) {
  launch_attend("attention", args, {}, stream);
}

void attention_varlen_launch(const AttentionVarlenArgs& args, Stream stream) {
  const auto packed = launch_packing("attention_varlen", args.packing, args.all.shape, stream);
  launch_attend("attention_varlen", args.all, packed, stream);
}

}  // namespace fusewheel
