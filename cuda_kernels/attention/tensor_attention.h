// Attention in half types by tensor cores: heads of up to 128 elements whose rows are aligned.
//
// A block has a tile of queries, a warp 16 of them. While a tile of keys is multiplied, that of values is
// on its way to shared memory, and the other way round.
//
// Dao, "FlashAttention-2" (2023): products of rows by one warp each, whose shares stay in registers.
#pragma once

#include "packing.h"
#include "tensor_tiles.h"

namespace fusewheel {
namespace {

// Whether the shares of a row are multiplied by the values in two parts: rounded to the dtype, and what that
// leaves out. Rounded to float16 alone, they would make the result err ten times as much as eager's, which
// sums in float32.
template <typename T>
constexpr bool kInTwoParts = std::is_same_v<T, __half>;

template <int D>
constexpr size_t kTensorBytes = 2 * kHalfTile<D> * 2 + kTile;  // keys, values, marks of the values

// Adds all tiles of keys to the result. With `careful`, values that are not finite are taken to be zero,
// and queries that see them are remembered; otherwise they spoil the result of every query.
template <int D, typename T>
__device__ void attend_tiles(const Operands<T>& given, const Task& task, const Band& band,
                             bool careful, T* shared, Softmax<T, WarpElements>& softmax,
                             float (&result)[D / 8][4]) {
  T* keys = shared;
  T* values = shared + kHalfTile<D>;
  bool* marks = reinterpret_cast<bool*>(shared + 2 * kHalfTile<D>);
  const int64_t end = task.wrong ? 0 : band.end(band.last(task.first));
  const int64_t begin = band.begin(task.first) / kTile * kTile;
  __syncthreads();  // what was there has been read
  begin_tile<D>(given.q, task.first, values);
  if (begin < end) {
    begin_tile<D>(given.k, begin, keys);
  }
  end_group_of_copies();
  wait_for_copies<0>();
  __syncthreads();
  uint32_t q[D / kMmaInner][4];
#pragma unroll
  for (int step = 0; step < D / kMmaInner; ++step) {
    load_left<D>(values, threadIdx.x / kWarp * kWarpRows, step, q[step]);
  }
  for (int64_t key = begin; key < end; key += kTile) {
    wait_for_copies<0>();
    __syncthreads();  // keys have come; the values before, or the queries, have been read
    begin_tile<D>(given.v, key, values);
    end_group_of_copies();
    HalfScores tile = {};
#pragma unroll
    for (int step = 0; step < D / kMmaInner; ++step) {
      multiply_step<D>(q[step], keys, step, tile);
    }
    wait_for_copies<0>();
    __syncthreads();  // values have come, keys have been read
    if (key + kTile < end) {
      begin_tile<D>(given.k, key + kTile, keys);
      end_group_of_copies();
    }
    unsigned marked = 0;
    if (careful) {
      const bool odd = clean_tile<D>(values);
      if (threadIdx.x < kTile) {
        marks[threadIdx.x] = odd;
      }
      __syncthreads();
#pragma unroll
      for (int j = 0; j < WarpElements::kColumns; ++j) {
        marked |= static_cast<unsigned>(marks[WarpElements::column(j)]) << j;
      }
    }
    float shrink[WarpElements::kRows];
    softmax.add(given.scores, band, task.first, key, marked, tile, shrink);
    multiply_rows(result, shrink);
    add_columns<D, kInTwoParts<T>>(tile, values, result);
  }
}

template <typename T, int D>
__global__ void __launch_bounds__(kTileThreads)
    attend_tensor(const __grid_constant__ AttentionArgs args,
                  const __grid_constant__ Division division) {
  if constexpr (kHasTensorCores) {
    FUSEWHEEL_DYNAMIC_SHARED(T, shared);
    bool careful = false;
    for (int64_t index = blockIdx.x; index < division.tasks;) {
      const Task task(division, args.shape, index);
      if (task.exists) {
        const Operands<T> given(args, task);
        Softmax<T, WarpElements> softmax(given.sink);
        float result[D / 8][4] = {};
        attend_tiles<D>(given, task, by_query(task.own, args.shape), careful, shared, softmax,
                        result);
        // A value may be infinite that a query does not see: the task once more, carefully.
        if (!careful && any_of_block(has_odd(result))) {
          careful = true;
          continue;
        }
        float sums[WarpElements::kRows];
        softmax.finish(task, given.logsumexp, sums);
        const float factors[] = {1 / sums[0], 1 / sums[1]};
        __syncthreads();  // keys and values have been read
        store_rows<D>(given.out, task.first, result, shared,
                      [&](int i, float value) { return value * factors[i]; });
      }
      careful = false;
      index += gridDim.x;
    }
  }
}

// Whether every vector of a tensor's rows is aligned.
inline bool has_aligned_rows(const View& view, int64_t size) {
  const auto& strides = view.strides;
  return size > 0 && size <= kMostTensorHead && size % kPiece == 0 && strides[3] == 1 &&
         strides[0] % kPiece == 0 && strides[1] % kPiece == 0 && strides[2] % kPiece == 0 &&
         is_aligned(view.data);
}

// Whether it has computed the result.
template <typename T>
bool launch_attend_tensor(const char* op, const AttentionArgs& args, const PackedRows& packed,
                          Stream stream) {
  if constexpr (sizeof(T) != 2) {
    return false;
  } else {
    const auto& shape = args.shape;
    if (!has_aligned_rows(args.q, shape.size) || !has_aligned_rows(args.k, shape.size) ||
        !has_aligned_rows(args.v, shape.value_size) ||
        !has_aligned_rows(args.out, shape.value_size)) {
      return false;
    }
    const auto run = [&](auto size) {
      constexpr int D = decltype(size)::value;
      const auto kernel = attend_tensor<T, D>;
      if (!has_tensor_cores(op, kernel)) {
        return false;
      }
      const Division division(shape.batch, shape.heads, shape.queries, D, D, packed.queries);
      launch(op, kernel, blocks_for(division.tasks, 1), kTileThreads, kTensorBytes<D>, stream, args,
             division);
      return true;
    };
    return with_tile_width(shape, run);
  }
}

}  // namespace
}  // namespace fusewheel
