// The product of a linear layer by tensor cores, for float32 activations and a weight in a half type.
//
// Blocks, warps and chunks are those of tensor_rows.h. Activations, and weights in float16, are split
// into parts (tensor_parts.h) whose products float32 holds exactly. Products of parts i and k are of one
// size for each i + k: a level. The smallest level is added up first; its sum, divided by 256, is where
// the next one begins.
//
// A GPU's tensor cores cut off the digits of a sum that float32 has no place for. So each strip of 32
// elements begins at zero, and ordinary instructions, which round, add its sums to y. Sums of 4096
// elements of one sign that never began again would err some hundred times as much.
#pragma once

#include "scaled_sums.h"
#include "tensor_parts.h"

namespace fusewheel {
namespace {

constexpr int kStripSteps = 2;

template <int M>
using PartTiles = uint32_t[kStripSteps][M][4];

// What a strip has of x, split.
template <typename Tiles, int M>
__device__ void split_strip(const unsigned char* stage, int strip, PartTiles<M> (&parts)[kFloatParts]) {
  const int row = threadIdx.x / 4;
  const int quarter = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < M * 2 * kStripSteps; ++i) {
    const int step = i % kStripSteps;
    const int eight = i / kStripSteps;  // rows
    const int place = Tiles::place(Tiles::piece(quarter, strip * kStripSteps + step));
    float piece[kLanes<float>];
    load(reinterpret_cast<const float*>(stage + (eight * 8 + row) * kRowBytes + place * kVectorBytes),
         piece);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t own[kFloatParts];
      split(piece[half * 2], piece[half * 2 + 1], own);
#pragma unroll
      for (int part = 0; part < kFloatParts; ++part) {
        parts[part][step][eight / 2][half * 2 + eight % 2] = own[part];
      }
    }
  }
}

// Adds a strip's products to y.
template <typename Tiles, int M>
__device__ void add_strip(const PartTiles<M> (&x)[kFloatParts], const ChunkBits<Tiles>& bits,
                          int strip, float (&y)[M][kTensorTiles][4]) {
  constexpr int kLevels = kFloatParts + Tiles::kParts - 1;
  float sums[M][kTensorTiles][4] = {};
#pragma unroll
  for (int level = kLevels - 1; level >= 0; --level) {
#pragma unroll
    for (int i = 0; i < kStripSteps * Tiles::kParts * kTensorTiles; ++i) {
      const int n = i % kTensorTiles;
      const int part = i / kTensorTiles % Tiles::kParts;  // of the weight
      const int step = i / kTensorTiles / Tiles::kParts;
      const int other = level - part;
      if (other < 0 || other >= kFloatParts) {
        continue;
      }
      uint32_t b[2];
      Tiles::pairs(bits[n][strip], step, part, b);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add_tiles(x[other][step][m], b, sums[m][n], __nv_bfloat16{});
      }
    }
#pragma unroll
    for (int i = 0; i < M * kTensorTiles * 4; ++i) {
      const int m = i / 4 / kTensorTiles;
      const int n = i / 4 % kTensorTiles;
      if (level > 0) {
        sums[m][n][i % 4] *= 1 / kPartStep;
      } else {
        y[m][n][i % 4] += sums[m][n][i % 4];
      }
    }
  }
}

template <typename W, int M>
__global__ void __launch_bounds__(kWarp* kTensorWarps, kTensorBlocks<M>)
    linear_parts(const __grid_constant__ LinearArgs args,
                 const __grid_constant__ WeightReader<Floats<W>> weight) {
  if constexpr (kHasTensorCores) {
    using Tiles = FloatTiles<W>;
    static_assert(Tiles::kVectors * 4 * kLanes<W> == kChunkElements<float>, "one chunk of both");
    FUSEWHEEL_DYNAMIC_SHARED(unsigned char, memory);
    const int64_t column = static_cast<int64_t>(blockIdx.x) * kTensorColumns;
    const int64_t row = static_cast<int64_t>(blockIdx.y) * (M * kMmaRows);
    unsigned char* stages = memory + threadIdx.y * kStages<M> * kStageBytes<M>;
    float y[M][kTensorTiles][4] = {};
    const auto add = [&](int64_t, const unsigned char* stage, const ChunkBits<Tiles>& bits) {
#pragma unroll
      for (int strip = 0; strip < Tiles::kVectors; ++strip) {
        PartTiles<M> x[kFloatParts];
        split_strip<Tiles, M>(stage, strip, x);
        add_strip<Tiles, M>(x, bits, strip, y);
      }
    };
    for_each_chunk<float, Tiles, M>(args, weight, row, column, stages, add);
    const unsigned odd =
        write_sums<float, M>(args, row, column, y, reinterpret_cast<float*>(memory));
    write_scaled_sums<float>(args, weight, row, column, odd);
  }
}

// Whether it has computed y: vectors can be read as the kernel does, and the GPU has tensor cores for
// bfloat16.
template <typename W>
bool parts_launch(const char* op, const LinearArgs& args, Stream stream) {
  const WeightReader<Floats<W>> weight(args.weight);
  if (args.y_dtype != Dtype::kFloat32 || !weight.aligned ||
      args.weight.columns % weight.kElements != 0 ||
      !has_vectors(args.x, args.x_stride, kLanes<float>)) {
    return false;
  }
  return args.rows <= kMmaRows
             ? launch_tiles<1>(op, linear_parts<W, 1>, args, 0, stream, weight)
             : launch_tiles<2>(op, linear_parts<W, 2>, args, 0, stream, weight);
}

}  // namespace
}  // namespace fusewheel
