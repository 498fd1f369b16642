// How blocks divide the work of attention.
#pragma once

#include <new>

#include "packing.h"
#include "tiles.h"

namespace fusewheel {
namespace {

// A task is a tile of rows of one head and some columns of its result. Tasks that follow each other
// are of different heads, from the last rows to the first: under a causal mask those have the most
// work.
struct Division {
  int64_t heads;
  int64_t parts;  // of the columns
  int64_t tiles;  // of the rows of all heads; where sequences are packed there may be fewer
  int64_t tasks;
  PackedSequences packed;

  Division(int64_t batch, int64_t heads, int64_t rows, int64_t size, int64_t columns,
           const PackedSequences& packed = {})
      : heads(heads),
        parts(size > columns ? (size + columns - 1) / columns : 1),
        tiles(rows / kTile + (packed.count > 0 ? packed.count : rows % kTile > 0)),
        tasks(batch * heads * parts * tiles),
        packed(packed) {}
};

struct Task {
  int64_t batch;
  int64_t head;
  int64_t first;  // row of the sequence
  int64_t part;
  Sequence own;
  bool exists = true;
  bool wrong = false;

  __device__ Task(const Division& division, const AttentionShape& shape, int64_t index) {
    const int64_t beside = shape.batch * division.heads * division.parts;
    const int64_t tile = division.tiles - 1 - index / beside;
    part = index % division.parts;
    head = index / division.parts % division.heads;
    batch = index % beside / division.parts / division.heads;
    if (division.packed.count == 0) {
      first = tile * kTile;
      own = {0, shape.queries, 0, shape.keys};
    } else {
      find(division.packed, tile);
    }
  }

 private:
  __device__ void find(const PackedSequences& packed, int64_t tile) {
    exists = tile < packed.tiles[packed.count];
    if (!exists) {
      return;
    }
    int64_t begin = 0;  // the last sequence of which no tile comes later is in [begin, end)
    int64_t end = packed.count;
    while (end - begin > 1) {
      const int64_t middle = begin + (end - begin) / 2;
      (packed.tiles[middle] <= tile ? begin : end) = middle;
    }
    first = (tile - packed.tiles[begin]) * kTile;
    own = packed.sequences[begin];
    wrong = *packed.wrong;
  }
};

// The block's task, in shared memory: it has the same for all threads, and they have no registers to spare.
// Every thread must call it.
__device__ inline const Task& shared_task(const Division& division, const AttentionShape& shape,
                                          int64_t index) {
  alignas(Task) __shared__ unsigned char memory[sizeof(Task)];
  __syncthreads();  // the task before has been read
  if (threadIdx.x == 0) {
    new (memory) Task(division, shape, index);
  }
  __syncthreads();
  return *reinterpret_cast<const Task*>(memory);
}

// One value for each query of a head, from query `first` on.
template <typename A>
__device__ A* row_values(void* values, const AttentionShape& shape, int64_t batch, int64_t head,
                         int64_t first = 0) {
  return static_cast<A*>(values) + (batch * shape.heads + head) * shape.queries + first;
}

}  // namespace
}  // namespace fusewheel
