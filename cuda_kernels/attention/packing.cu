// Reads where packed sequences begin and end, and counts their tiles

#include "packing.h"

#include "common/reduce.h"
#include "tiles.h"

namespace fusewheel {
namespace {

constexpr int kPackingThreads = 256;

// What the kernel writes into `scratch`. There is a sequence even where none is given: it has the rows
// that should not be there.
struct PackingMemory {
  int64_t count;
  Sequence* sequences;
  int64_t* query_tiles;
  int64_t* key_tiles;
  bool* wrong;

  explicit PackingMemory(const Packing& packing)
      : count(count_of(packing.count)),
        sequences(static_cast<Sequence*>(packing.scratch)),
        query_tiles(reinterpret_cast<int64_t*>(sequences + count)),
        key_tiles(query_tiles + count + 1),
        wrong(reinterpret_cast<bool*>(key_tiles + count + 1)) {}

  static int64_t count_of(int64_t sequences) { return sequences > 0 ? sequences : 1; }

  static int64_t bytes(int64_t sequences) {
    const int64_t count = count_of(sequences);
    return count * static_cast<int64_t>(sizeof(Sequence)) +
           2 * (count + 1) * static_cast<int64_t>(sizeof(int64_t)) + 1;
  }
};

__device__ inline int64_t number_at(const Bounds& bounds, int64_t i) {
  return bounds.is_long ? static_cast<const int64_t*>(bounds.data)[i * bounds.stride]
                        : static_cast<const int32_t*>(bounds.data)[i * bounds.stride];
}

// Whether number i may stand there.
__device__ inline bool fits(const Bounds& bounds, int64_t i, int64_t count, int64_t rows) {
  const int64_t number = number_at(bounds, i);
  const int64_t before = i == 0 ? 0 : number_at(bounds, i - 1);
  return number >= before && (i > 0 || number == 0) && (i < count || number == rows);
}

// Sequence i; if the bounds are wrong, the first one is everything.
__device__ inline Sequence sequence_at(const Packing& packing, int64_t i, bool wrong,
                                       const AttentionShape& shape) {
  if (wrong) {
    return {0, i == 0 ? shape.queries : 0, 0, i == 0 ? shape.keys : 0};
  }
  if (packing.count == 0) {
    return {};
  }
  const int64_t query = number_at(packing.queries, i);
  const int64_t key = number_at(packing.keys, i);
  return {query, number_at(packing.queries, i + 1) - query, key,
          number_at(packing.keys, i + 1) - key};
}

__device__ inline int64_t tiles_of(int64_t rows) { return (rows + kTile - 1) / kTile; }

// What all threads before have. `totals`: one for each warp, in shared memory.
__device__ inline int64_t sum_before(int64_t own, int64_t* totals) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int64_t sum = own;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int64_t before = __shfl_up_sync(0xffffffffu, sum, distance);
    sum += lane >= distance ? before : 0;
  }
  if (lane == kWarp - 1) {
    totals[warp] = sum;
  }
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < warp; ++i) {
    sum += totals[i];
  }
  return sum - own;
}

// A single block. Each thread has some sequences that follow each other.
__global__ void __launch_bounds__(kPackingThreads)
    pack(const __grid_constant__ Packing packing, const __grid_constant__ PackingMemory memory,
         const __grid_constant__ AttentionShape shape) {
  __shared__ int64_t totals[2][kPackingThreads / kWarp];
  const int thread = static_cast<int>(threadIdx.x);
  int faults = 0;
#pragma unroll 1
  for (int64_t i = thread; i <= packing.count; i += kPackingThreads) {
    faults += !fits(packing.queries, i, packing.count, shape.queries);
    faults += !fits(packing.keys, i, packing.count, shape.keys);
  }
  const bool wrong = row_sum(faults) > 0;
  const int64_t each = (memory.count + kPackingThreads - 1) / kPackingThreads;
  const int64_t begin = thread * each;
  const int64_t end = begin + each < memory.count ? begin + each : memory.count;
  int64_t query_tiles = 0;
  int64_t key_tiles = 0;
#pragma unroll 1
  for (int64_t i = begin; i < end; ++i) {
    const Sequence own = sequence_at(packing, i, wrong, shape);
    memory.sequences[i] = own;
    query_tiles += tiles_of(own.queries);
    key_tiles += tiles_of(own.keys);
  }
  query_tiles = sum_before(query_tiles, totals[0]);
  key_tiles = sum_before(key_tiles, totals[1]);
#pragma unroll 1
  for (int64_t i = begin; i < end; ++i) {
    memory.query_tiles[i] = query_tiles;
    memory.key_tiles[i] = key_tiles;
    query_tiles += tiles_of(memory.sequences[i].queries);
    key_tiles += tiles_of(memory.sequences[i].keys);
  }
  if (end == memory.count && begin < end) {
    memory.query_tiles[end] = query_tiles;
    memory.key_tiles[end] = key_tiles;
    *memory.wrong = wrong;
  }
}

}  // namespace

int64_t packing_scratch_bytes(int64_t sequences) { return PackingMemory::bytes(sequences); }

PackedRows launch_packing(const char* op, const Packing& packing, const AttentionShape& shape,
                          Stream stream) {
  const PackingMemory memory(packing);
  launch(op, pack, 1, kPackingThreads, 0, stream, packing, memory, shape);
  return {{memory.count, memory.sequences, memory.query_tiles, memory.wrong},
          {memory.count, memory.sequences, memory.key_tiles, memory.wrong}};
}

}  // namespace fusewheel
