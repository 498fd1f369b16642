// A part of attention_decode by tensor cores, where many queries share a head of the cache, in half types.
//
// By the count, the products of 4 queries take less time than reading the cache does; those of more are
// computed here. A block has up to 16 queries, which are the rows of a tile, and a part of the keys. Of
// each 64 keys a warp has 16, and their values: it waits for no other warp until all are added.
#pragma once

#include "tensor_keys.h"

namespace fusewheel {
namespace {

// Adds the products of shares and values. A share is the sum of two numbers of the half type: rounded to
// one, it would err more than the result does when it is rounded.
template <int D, typename T>
__device__ void add_shares(const WarpScores& shares, const T* values, float (&result)[D / 8][4]) {
  static_assert(kWarpRows == kMmaInner, "one step");
  WarpScores rests;
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rests[n][i] = shares[n][i] - round_to<T>(shares[n][i]);
    }
  }
  uint32_t left[2][4];
  as_left<T>(shares, 0, left[0]);
  as_left<T>(rests, 0, left[1]);
#pragma unroll
  for (int n = 0; n < D / 8; n += 2) {
    uint32_t right[4];
    load_columns<D>(values, 0, n * kMmaColumns, right);
    multiply_pair(left[0], right, result[n], result[n + 1], T{});
    multiply_pair(left[1], right, result[n], result[n + 1], T{});
  }
}

// Adds the keys and values that the warp has of the part. With `careful`, values that are not finite are
// taken to be zero, and queries that see them are remembered; otherwise they spoil every result.
template <int D, typename T>
__device__ void add_keys(const DecodePlan& call, const TensorPartTask& task, bool careful,
                         TensorPart<T, D>& shared, TensorRows& rows, float (&result)[D / 8][4]) {
  const auto& args = call.args;
  const auto& shape = args.shape;
  const int own = static_cast<int>(threadIdx.x) / kWarp * kWarpRows;
  const T* keys = shared.keys + own * D;
  T* values = shared.values + own * D;
  begin_rows<D>(args.k, task, shared.places, task.from, shape.size, shared.keys);
  end_group_of_copies();
  for (int slot = task.from; slot < task.to; slot += kTile) {
    wait_for_copies<0>();
    __syncwarp();  // keys have come, the values before have been read
    begin_rows<D>(args.v, task, shared.places, slot, shape.value_size, shared.values);
    end_group_of_copies();
    WarpScores tile = {};
#pragma unroll
    for (int step = 0; step < D / kMmaInner; ++step) {
      uint32_t left[4];
      load_left<D>(shared.queries, 0, step, left);
      multiply_step<D>(left, keys, step, tile);
    }
    wait_for_copies<0>();
    __syncwarp();  // values have come, keys have been read
    if (slot + kTile < task.to) {
      begin_rows<D>(args.k, task, shared.places, slot + kTile, shape.size, shared.keys);
      end_group_of_copies();
    }
    const unsigned marked = careful ? clean_rows<D>(values) : 0;
    float shrink[TensorRows::kRows];
    rows.add(shape, slot + own, marked, tile, shrink);
    multiply_rows(result, shrink);
    add_shares<D>(tile, values, result);
  }
}

// Merges what the warps have found of each query, and writes it.
template <int D, typename T>
__device__ void merge_warps(const DecodePlan& call, const TensorPartTask& task,
                            const TensorRows& rows, const float (&result)[D / 8][4],
                            TensorPart<T, D>& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const unsigned own_spoilt = (rows.spoilt & 1u) << TensorRows::row(0) |
                              rows.spoilt >> 1 << TensorRows::row(1);
  const unsigned spoilt = warp_reduce<Either>(own_spoilt);
#pragma unroll
  for (int i = 0; i < TensorRows::kRows; ++i) {
    const float total = warp_reduce<Plus>(rows.total[i], TensorRows::kThreads);
    if (lane % TensorRows::kThreads == 0) {
      shared.peaks[warp][TensorRows::row(i)] = rows.peak[i];
      shared.totals[warp][TensorRows::row(i)] = total;
    }
  }
  if (lane == 0) {
    shared.spoilt[warp] = spoilt;
  }
  __syncthreads();  // and all keys and values have been read
  const auto peak_of = [&](int row) {
    float peak = shared.peaks[0][row];
    for (int other = 1; other < kDecodeWarps; ++other) {
      peak = Larger()(peak, shared.peaks[other][row]);
    }
    return peak;
  };
  const auto factor = [](float own, float peak) {
    return exponential(own - (peak == kNothing<float> ? 0 : peak));
  };
#pragma unroll
  for (int i = 0; i < TensorRows::kRows; ++i) {
    const int row = TensorRows::row(i);
    const float own = factor(rows.peak[i], peak_of(row));
    float* sums = shared.sums() + warp * kWarpSums<D> + row * kSumStride<D>;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const float both[] = {result[n][2 * i] * own, result[n][2 * i + 1] * own};
      uint64_t bits;
      memcpy(&bits, both, sizeof(bits));
      float* pair = sums + n * kMmaColumns + lane % TensorRows::kThreads * 2;
      *reinterpret_cast<uint64_t*>(pair) = bits;
    }
  }
  __syncthreads();
  for (int row = 0; row < task.rows; ++row) {
    auto* found = task.template found<float>(call, row);
    for (int column = threadIdx.x; column < call.args.shape.value_size; column += kDecodeThreads) {
      float sum = 0;
      for (int other = 0; other < kDecodeWarps; ++other) {
        sum += shared.sums()[other * kWarpSums<D> + row * kSumStride<D> + column];
      }
      found[kPartHead + column] = sum;
    }
  }
  const int row = static_cast<int>(threadIdx.x);
  if (row < task.rows) {
    const float peak = peak_of(row);
    float total = 0;
    unsigned odd = 0;
    for (int other = 0; other < kDecodeWarps; ++other) {
      total += shared.totals[other][row] * factor(shared.peaks[other][row], peak);
      odd |= shared.spoilt[other] >> row & 1u;
    }
    auto* found = task.template found<float>(call, row);
    found[kPartPeak] = peak;
    found[kPartTotal] = total;
    found[kPartOdd] = odd != 0 ? static_cast<float>(NAN) : 0;
  }
}

template <typename T, int D>
__global__ void __launch_bounds__(kDecodeThreads, 3)
    attend_tensor_part(const __grid_constant__ DecodePlan call, bool q_vectors) {
  if constexpr (kHasTensorCores) {
    using Memory = TensorPart<T, D>;
    FUSEWHEEL_DYNAMIC_SHARED(Memory, shared);
    for (int64_t index = blockIdx.x; index < call.tasks; index += gridDim.x) {
      const TensorPartTask task(call, index);
      if (task.from >= task.to) {
        continue;
      }
      __syncthreads();  // the sums before have been read
      if (find_places(call, task, shared->places)) {
        const int row = static_cast<int>(threadIdx.x);
        if (row < task.rows) {
          task.template found<float>(call, row)[kPartPeak] = static_cast<float>(NAN);
        }
        continue;
      }
      load_tile_of_queries<D>(call, task, q_vectors, shared->queries);
      // A value may be infinite that a query does not see: the task once more, carefully.
      for (bool careful = false;; careful = true) {
        __syncthreads();  // queries have come, values have been read
        TensorRows rows(call, task);
        float result[D / 8][4] = {};
        add_keys<D>(call, task, careful, *shared, rows, result);
        if (careful || !any_of_block(has_odd(result))) {
          __syncthreads();
          merge_warps<D>(call, task, rows, result, *shared);
          break;
        }
      }
    }
  }
}

// Whether it has computed the parts.
template <typename T>
bool launch_tensor_parts(const DecodeCall& call, Stream stream) {
  const auto& args = call.args;
  const auto& shape = args.shape;
  const auto fits = [](const Cache& cache, int64_t size) {
    return size > 0 && size <= kMostTensorHead && size % kPiece == 0 && is_aligned(cache.data) &&
           cache.page % kPiece == 0 && cache.key % kPiece == 0 && cache.head % kPiece == 0;
  };
  if (!fits(args.k, shape.size) || !fits(args.v, shape.value_size)) {
    return false;
  }
  const bool q_vectors = is_aligned(args.q) && args.q_strides[0] % kPiece == 0 &&
                         args.q_strides[1] % kPiece == 0 && args.q_strides[2] % kPiece == 0;
  const DecodePlan plan(call, kTensorQueries);
  const auto run = [&](auto size) {
    constexpr int D = decltype(size)::value;
    const auto kernel = attend_tensor_part<T, D>;
    if (!has_tensor_cores("attention_decode", kernel)) {
      return false;
    }
    launch("attention_decode", kernel, blocks_for(plan.tasks, 1), kDecodeThreads,
           sizeof(TensorPart<T, D>), stream, plan, q_vectors);
    return true;
  };
  return with_tile_width(shape, run);
}

}  // namespace
}  // namespace fusewheel
