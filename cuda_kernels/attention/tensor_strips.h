// What the gradients of attention by tensor cores have in shared memory, and the products of a warp.
#pragma once

#include "queries.h"
#include "tensor_tiles.h"

namespace fusewheel {
namespace {

// Two results and two tiles of 64 columns are more than the registers of a thread hold.
constexpr int kStrip = 32;
constexpr int kStripTiles = kStrip / kMmaColumns;
using StripScores = float[kStripTiles][4];

// While one strip is multiplied, the next one is on its way, where two blocks of a multiprocessor still
// find room: GPUs of compute capability 8.6, 8.9 and 12.0 have 100 KB.
template <int D>
constexpr int kStages = D <= 64 ? 2 : 1;

// In shared memory: all threads need it, from time to time, and their registers are full.
struct TensorTask {
  Task task;
  Band band;

  // Whether the block has something to do.
  template <bool kByQuery>
  __device__ bool begin(const Division& division, const AttentionShape& shape, int64_t index) {
    __syncthreads();  // the one before has been read
    if (threadIdx.x == 0) {
      task = Task(division, shape, index);
      band = kByQuery ? by_query(task.own, shape) : by_key(task.own, shape);
    }
    __syncthreads();
    return task.exists;
  }
};

// Of shared memory, in elements: two tiles of a block's own, then two strips in each stage.
template <int D>
constexpr int kStripElements = kStrip * D;
template <int D>
constexpr int kStageElements = 2 * kStripElements<D>;
// Then comes what is known of the queries of each stage, then a task.
template <int D>
constexpr size_t kTensorGradientBytes =
    2 * (2 * kHalfTile<D> + kStages<D> * kStageElements<D>) +
    kStages<D> * kStrip * sizeof(Query<float>) + sizeof(TensorTask);

// A strip of the queries of a head, or of the keys that it sees.
struct Place {
  int head;
  int strip;

  __device__ int64_t first() const { return static_cast<int64_t>(strip) * kStrip; }
};

// The products of a warp's rows and of the rows of a strip.
template <int D, typename T>
__device__ void multiply_strip(const T* own, const T* strip, StripScores& products) {
#pragma unroll
  for (int step = 0; step < D / kMmaInner; ++step) {
    uint32_t left[4];
    load_left<D>(own, threadIdx.x / kWarp * kWarpRows, step, left);
    multiply_step<D>(left, strip, step, products);
  }
}

}  // namespace
}  // namespace fusewheel
