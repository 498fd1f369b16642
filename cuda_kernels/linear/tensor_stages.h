// What tensor_rows.h and tensor_floats.h share. A block keeps in shared memory, for each warp, the chunk
// of x that it works on and the next one, then the scales of its columns; at the end the warps' sums.
#pragma once

#include "args.h"
#include "common/reduce.h"
#include "common/rows.h"
#include "tensor_codes.h"

namespace fusewheel {
namespace {

constexpr int kTensorWarps = 4;
constexpr int kTensorColumns = 32;  // of y, a block
constexpr int kTensorTiles = kTensorColumns / kMmaColumns;

// A chunk of a row, in pieces of 128 bits, and what keeps rows in different banks.
constexpr int kRowPieces = kChunk / 8;
template <typename T>
constexpr int kChunkElements = kRowPieces * kLanes<T>;
constexpr int kRowBytes = (kRowPieces + 4) * kVectorBytes;

// For M tiles of 16 rows.
template <int M>
constexpr int kStages = 2 / M;
template <int M>
constexpr int kStageBytes = M * kMmaRows * kRowBytes;
template <int M>
constexpr int kStagesBytes = kTensorWarps * kStages<M> * kStageBytes<M>;

// Scales of a group stand side by side; those of neighbouring groups begin in different banks.
constexpr int kScaleStride = kTensorColumns + 2;
constexpr int64_t kMostScaleBytes = 20 * 1024;  // more are read where they are

struct TensorPlan {
  int64_t scale_bytes;  // of a block in shared memory, and as many of zeros; 0 if they stay where they are
  bool has_zeros;
  int shift;  // an element of a chunk belongs to the group element >> shift of it

  TensorPlan(const LinearWeight& weight, Dtype x_dtype)
      : scale_bytes(weight.groups * kScaleStride * 2),
        has_zeros(weight.zeros != nullptr),
        shift(0) {
    while (1 << shift < kChunk && (weight.groups == 1 || 1 << shift < weight.group_size)) {
      ++shift;
    }
    if (staged() > kMostScaleBytes || weight.scale_dtype != x_dtype) {
      scale_bytes = 0;
    }
  }

  int64_t staged() const { return scale_bytes * (has_zeros ? 2 : 1); }
};

// Those of a block's columns, in shared memory as elements of T, or where they are.
template <typename T>
class Scales {
 public:
  // By all threads of a block.
  __device__ Scales(const LinearWeight& weight, const TensorPlan& plan, int64_t column,
                    unsigned char* memory)
      : weight_(weight), column_(column) {
    if (plan.scale_bytes > 0) {
      scales_ = copied(weight.scales, memory);
      zeros_ = plan.has_zeros ? copied(weight.zeros, memory + plan.scale_bytes) : nullptr;
      __syncthreads();
    }
  }

  __device__ float scale(int64_t column, int64_t group) const {
    return at(scales_, weight_.scales, column, group);
  }
  __device__ float zero(int64_t column, int64_t group) const {
    return at(zeros_, weight_.zeros, column, group);
  }

 private:
  __device__ const T* copied(const void* stored, unsigned char* memory) const {
    const int groups = static_cast<int>(weight_.groups);
    const int64_t left = weight_.rows - column_;
    const int count = static_cast<int>(left < kTensorColumns ? left : kTensorColumns) * groups;
    const auto* from = static_cast<const T*>(stored) + column_ * groups;
    T* to = reinterpret_cast<T*>(memory);
    for (int i = threadIdx.y * kWarp + threadIdx.x; i < count; i += kTensorWarps * kWarp) {
      to[i % groups * kScaleStride + i / groups] = from[i];
    }
    return to;
  }

  __device__ float at(const T* staged, const void* stored, int64_t column, int64_t group) const {
    return staged != nullptr ? widen(staged[group * kScaleStride + column])
                             : load_one<float>(stored, weight_.scale_dtype,
                                               (column_ + column) * weight_.groups + group);
  }

  const LinearWeight& weight_;
  int64_t column_;
  const T* scales_ = nullptr;
  const T* zeros_ = nullptr;
};

// Begins to copy a chunk of x for a warp; rows and elements that do not exist are zero.
template <typename T, typename Codes, int M>
__device__ void begin_x(const LinearArgs& args, int64_t row, int64_t chunk, unsigned char* stage) {
  const int piece = threadIdx.x % kRowPieces;
  const int64_t k = chunk * kChunkElements<T> + piece * kLanes<T>;
#pragma unroll
  for (int i = threadIdx.x / kRowPieces; i < M * kMmaRows; i += kWarp / kRowPieces) {
    const bool exists = row + i < args.rows && k < args.weight.columns;
    const auto* from =
        static_cast<const T*>(args.x) + (exists ? (row + i) * args.x_stride + k : 0);
    copy_async(stage + i * kRowBytes + Codes::place(piece) * kVectorBytes, from, exists);
  }
}

// A lane's vectors of the weight of a chunk, for each tile of columns.
template <typename Codes>
using ChunkBits = uint4[kTensorTiles][Codes::kVectors];

template <typename Codes>
__device__ void read_codes(const WeightReader<typename Codes::Stored>& weight, int64_t column,
                           int64_t chunk, ChunkBits<Codes>& bits) {
#pragma unroll
  for (int n = 0; n < kTensorTiles; ++n) {
    const int64_t own = column + n * kMmaColumns + threadIdx.x / 4;
    const int64_t row = own < weight.weight.rows ? own : weight.weight.rows - 1;
#pragma unroll
    for (int v = 0; v < Codes::kVectors; ++v) {
      const int64_t vector = (chunk * Codes::kVectors + v) * 4 + threadIdx.x % 4;
      bits[n][v] = vector < weight.vectors() ? weight.whole_bits(row, vector) : uint4{};
    }
  }
}

// Calls body(chunk, stage, bits) for every chunk of a warp: its part of x is in `stage`, that of the
// weight in `bits`. Those of the next chunk are on their way meanwhile if there are two stages.
template <typename T, typename Codes, int M, typename Body>
__device__ void for_each_chunk(const LinearArgs& args,
                               const WeightReader<typename Codes::Stored>& weight, int64_t row,
                               int64_t column, unsigned char* stages, const Body& body) {
  constexpr int kTwo = kStages<M> > 1;
  const int64_t chunks = (args.weight.columns + kChunkElements<T> - 1) / kChunkElements<T>;
  ChunkBits<Codes> next;
  int64_t chunk = threadIdx.y;
  if (chunk < chunks) {
    begin_x<T, Codes, M>(args, row, chunk, stages);
    read_codes<Codes>(weight, column, chunk, next);
  }
  end_group_of_copies();
  for (int stage = 0; chunk < chunks; chunk += kTensorWarps) {
    const bool is_last = chunk + kTensorWarps >= chunks;
    const unsigned char* own = stages + stage * kStageBytes<M>;
    stage = (stage + 1) % kStages<M>;
    ChunkBits<Codes> bits;
#pragma unroll
    for (int n = 0; n < kTensorTiles; ++n) {
#pragma unroll
      for (int v = 0; v < Codes::kVectors; ++v) {
        bits[n][v] = next[n][v];
      }
    }
    if (kTwo && !is_last) {
      read_codes<Codes>(weight, column, chunk + kTensorWarps, next);
      begin_x<T, Codes, M>(args, row, chunk + kTensorWarps, stages + stage * kStageBytes<M>);
    }
    end_group_of_copies();
    wait_for_copies<kTwo>();
    __syncwarp();
    body(chunk, own, bits);
    __syncwarp();  // all lanes have read the stage that is written next
    if (!kTwo && !is_last) {
      read_codes<Codes>(weight, column, chunk + kTensorWarps, next);
      begin_x<T, Codes, M>(args, row, chunk + kTensorWarps, stages);
    }
  }
  wait_for_copies<0>();
}

// Where a row of a warp's sums begins: rows that are written together are in different banks.
__device__ inline int sums_of_row(int row) { return row * (kTensorColumns + 8) + row / 4 % 2; }

// Adds the warps' sums, and the bias, and writes y. Returns which of a thread's elements are not finite,
// a bit for each of its rows.
template <typename T, int M>
__device__ unsigned write_sums(const LinearArgs& args, int64_t row, int64_t column,
                               const float (&y)[M][kTensorTiles][4], float* sums) {
  constexpr int kRows = M * kMmaRows;
  const int lane = threadIdx.x;
  const int warp_sums = sums_of_row(kRows);
  __syncthreads();  // no warp reads its stages any more
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < kTensorTiles; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int own = m * kMmaRows + lane / 4 + k / 2 * 8;
        sums[threadIdx.y * warp_sums + sums_of_row(own) + n * kMmaColumns + lane % 4 * 2 + k % 2] =
            y[m][n][k];
      }
    }
  }
  __syncthreads();
  if (column + lane >= args.weight.rows) {
    return 0;
  }
  const float bias =
      args.bias == nullptr ? 0 : load_one<float>(args.bias, args.bias_dtype, column + lane);
  unsigned odd = 0;
  for (int i = threadIdx.y; i < kRows && row + i < args.rows; i += kTensorWarps) {
    float sum = bias;
    for (int warp = 0; warp < kTensorWarps; ++warp) {
      sum += sums[warp * warp_sums + sums_of_row(i) + lane];
    }
    odd |= (sum * 0 == 0 ? 0u : 1u) << (i / kTensorWarps);
    narrow(sum, static_cast<T*>(args.y)[(row + i) * args.weight.rows + column + lane]);
  }
  return odd;
}

// How many blocks a multiprocessor should run at a time; 0 leaves it to the compiler. With two tiles of
// rows it would count on more than there are registers for, and a chunk is read only when the one
// before has been multiplied.
template <int M>
constexpr int kTensorBlocks = M == 1 ? 0 : 2;

// Launches a kernel whose blocks have M tiles of rows, and `more` bytes of shared memory beside their
// stages. Whether it could: the GPU has tensor cores, and the grid room for the rows.
template <int M, typename... Parameters, typename... Rest>
bool launch_tiles(const char* op, void (*kernel)(Parameters...), const LinearArgs& args, int64_t more,
                  Stream stream, const Rest&... rest) {
  constexpr int64_t kMostBlocks = 65535;  // down a grid
  const int64_t slices = (args.rows + M * kMmaRows - 1) / (M * kMmaRows);
  if (slices > kMostBlocks || !has_tensor_cores(op, kernel)) {
    return false;
  }
  const dim3 grid((args.weight.rows + kTensorColumns - 1) / kTensorColumns, slices);
  launch(op, kernel, grid, dim3(kWarp, kTensorWarps), kStagesBytes<M> + more, stream, args, rest...);
  return true;
}

}  // namespace
}  // namespace fusewheel
