// What a block of tensor_decode.h has in shared memory, and what its lanes know of their queries.
#pragma once

#include "decode_part.h"
#include "tensor_tiles.h"

namespace fusewheel {
namespace {

constexpr int kTensorQueries = kMmaRows;
constexpr int kDecodeWarps = kDecodeThreads / kWarp;
constexpr int kKeyTiles = kWarpRows / kMmaColumns;  // of the scores of a warp
using WarpScores = float[kKeyTiles][4];
using TensorPartTask = PartTask<kTensorQueries>;

// The sums of a warp in shared memory: rows of them begin in different banks.
template <int D>
constexpr int kSumStride = D + 8;
template <int D>
constexpr int kWarpSums = kTensorQueries * kSumStride<D>;

template <typename T, int D>
struct TensorPart {
  float peaks[kDecodeWarps][kTensorQueries];
  float totals[kDecodeWarps][kTensorQueries];
  unsigned spoilt[kDecodeWarps];
  alignas(16) T queries[kTensorQueries * D];  // for them there are no registers
  alignas(16) T keys[kHalfTile<D>];
  alignas(16) T values[kHalfTile<D>];
  Place places[kDecodePart];

  // Those of all warps, instead of what they were computed from.
  __device__ float* sums() {
    static_assert(sizeof(keys) + sizeof(values) + sizeof(places) >=
                      kDecodeWarps * kWarpSums<D> * sizeof(float),
                  "there is room");
    return reinterpret_cast<float*>(keys);
  }
};

// Which elements of a warp's tile of scores a lane has.
struct KeyElements : WarpElements {
  static constexpr int kColumns = 2 * kKeyTiles;

  static __device__ int row(int i) {
    return static_cast<int>(threadIdx.x) % kWarp / kThreads + 8 * i;
  }
};

// What a lane knows of its two rows of a tile of scores, which four lanes share.
struct TensorRows : KeyElements {
  int begin[kRows];  // which keys of the part the query sees
  int end[kRows];
  float peak[kRows];
  float total[kRows];   // this lane's part of the sum of exponentials relative to the peak
  unsigned spoilt = 0;  // a bit for each row: whether it sees a value that is not finite

  __device__ TensorRows(const DecodePlan& plan, const TensorPartTask& task) {
    const auto& shape = plan.args.shape;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t query = task.query(plan, row(i));
      const int64_t after = query + task.length - shape.queries + 1;
      begin[i] = task.within(first_key(shape, task.length, query));
      end[i] = row(i) < task.rows ? task.within(after) : 0;
      peak[i] = kNothing<float>;
      total[i] = 0;
    }
  }

  // Products with the keys from `slot` on become shares, relative to the largest score so far. `marked`: a
  // bit for each key whose value is not finite. Sums from before have to be multiplied by `shrink`.
  __device__ void add(const DecodeShape& shape, int slot, unsigned marked, WarpScores& tile,
                      float (&shrink)[kRows]) {
    const auto scale = static_cast<float>(shape.scale);
    const auto softcap = static_cast<float>(shape.softcap);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float found = kNothing<float>;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        float& element = at(tile, i, j);
        const int key = slot + column(j);
        float score = kNothing<float>;
        if (key >= begin[i] && key < end[i]) {
          score = element * scale;
          score = softcap > 0 ? hyperbolic_tangent(score / softcap) * softcap : score;
          spoilt |= (marked >> column(j) & 1u) << i;
        }
        found = score > found ? score : found;
        element = score;
      }
      share_scores<KeyElements>(tile, i, found, peak[i], total[i], shrink[i]);
    }
  }
};

// All queries of the block; zeros where there are none.
template <int D, typename T>
__device__ void load_tile_of_queries(const DecodePlan& call, const TensorPartTask& task,
                                     bool vectors, T* tile) {
  const auto& shape = call.args.shape;
  const auto& strides = call.args.q_strides;
  for (int i = threadIdx.x; i < kTensorQueries * kPieces<D>; i += kDecodeThreads) {
    const int row = i / kPieces<D>;
    const int piece = i % kPieces<D>;
    float values[kPiece] = {};
    if (row < task.rows) {
      const auto* query = static_cast<const T*>(call.args.q) + task.batch * strides[0] +
                          task.head(call, row) * strides[1] +
                          task.query(call, row) * strides[2];
      read(query + piece * kPiece, vectors, shape.size - piece * kPiece, values);
    }
    store(piece_of<D>(tile, row, piece), values);
  }
}

// Begins to copy the warp's rows of the 64 of a cache from `slot` on; zeros where the part has none.
template <int D, typename T>
__device__ void begin_rows(const Cache& cache, const TensorPartTask& task, const Place* places,
                           int slot, int64_t size, T* tile) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int own = static_cast<int>(threadIdx.x) / kWarp * kWarpRows;
  const int piece = lane % kPieces<D>;
  const auto* data = static_cast<const T*>(cache.data);
#pragma unroll 1  // addresses of all rows would take too many registers
  for (int row = own + lane / kPieces<D>; row < own + kWarpRows; row += kWarp / kPieces<D>) {
    const bool exists = slot + row < task.to && piece * kPiece < size;
    const T* from =
        exists ? data + places[slot + row].in(cache, task.kv_head) + piece * kPiece : data;
    copy_async(piece_of<D>(tile, row, piece), from, exists);
  }
}

// Zeros instead of what is not finite in the values of a warp. Returns by bits which of them had such.
template <int D, typename T>
__device__ unsigned clean_rows(T* own) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const unsigned odd = lane < kWarpRows && clean_row<D>(own, lane) ? 1u << lane : 0;
  const unsigned all = warp_reduce<Either>(odd);
  __syncwarp();  // the rows are clean for all lanes
  return all;
}

}  // namespace
}  // namespace fusewheel
