// The product of a linear layer by tensor cores, for a weight of codes and activations in a half type.
//
// A block has 32 columns of y and 16 or 32 rows. Its warps take turns at chunks of 128 elements of k;
// their sums are added at the end, in a fixed order. Codes are whole numbers that both half types hold:
// products with them are exact, and so y = sum over groups of scale * (x * codes) + zero * (sum of x) is
// rounded as float32 sums are. The sums of x are products too, with ones.
//
// A lane reads 128 bits of the weight at a time, as they are stored. Which element of k stands where in
// a tile does not matter if x and the weight agree: each lane puts at its places what it has read, and
// x is brought into shared memory in the order in which lanes need it.
#pragma once

#include "scaled_sums.h"
#include "tensor_codes.h"
#include "tensor_stages.h"

namespace fusewheel {
namespace {

// One group of a chunk: products of x with codes, and with ones.
template <typename T, typename Codes, int M>
__device__ void multiply_group(const unsigned char* stage, const ChunkBits<Codes>& bits, int shift,
                               int group, float (&sums)[M][kTensorTiles][4], float (&ones)[M][4]) {
  const int row = threadIdx.x / 4;
  const int quarter = threadIdx.x % 4;
  uint32_t x[M][2][4][4];  // of each row, the words of the quarter's pieces
#pragma unroll
  for (int i = 0; i < M * 8; ++i) {
    const unsigned char* from = stage + (i / 4 * 8 + row) * kRowBytes;
    const uint4 bits = *reinterpret_cast<const uint4*>(
        from + Codes::place(Codes::piece(quarter, i % 4)) * kVectorBytes);
    memcpy(x[i / 8][i / 4 % 2][i % 4], &bits, sizeof(bits));
  }
  const uint32_t one[2] = {pair_of(1, 1, T{}), pair_of(1, 1, T{})};
#pragma unroll
  for (int step = 0; step < kChunk / kMmaInner; ++step) {
    const bool belongs = Codes::element(quarter, step) >> shift == group;
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[m][i] = belongs ? x[m][i % 2][Codes::own(step, i / 2)][Codes::word(step, i / 2)] : 0;
      }
      if (Codes::Stored::kHasZero) {
        multiply_add_tiles(a[m], one, ones[m], T{});
      }
    }
#pragma unroll
    for (int n = 0; n < kTensorTiles; ++n) {
      uint32_t b[2];
      Codes::template pairs<T>(bits[n], step, b);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add_tiles(a[m], b, sums[m][n], T{});
      }
    }
  }
}

// Adds a group's products to y, times its scales and zeros.
template <typename T, typename Codes, int M>
__device__ void add_group(const Scales<T>& scales, int64_t group, int64_t columns,
                          const float (&sums)[M][kTensorTiles][4], const float (&ones)[M][4],
                          float (&y)[M][kTensorTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTensorTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t column = n * kMmaColumns + threadIdx.x % 4 * 2 + i;
      const int64_t own = column < columns ? column : 0;
      const float scale = scales.scale(own, group);
      const float zero = Codes::Stored::kHasZero ? scales.zero(own, group) : 0;
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int k = i; k < 4; k += 2) {
          y[m][n][k] = multiply_add(scale, sums[m][n][k], y[m][n][k]);
          if (Codes::Stored::kHasZero) {
            y[m][n][k] = multiply_add(zero, ones[m][k / 2 * 2], y[m][n][k]);
          }
        }
      }
    }
  }
}

// What a warp's chunks give of y.
template <typename T, typename Codes, int M>
__device__ void add_chunks(const LinearArgs& args, const WeightReader<typename Codes::Stored>& weight,
                           const TensorPlan& plan, const Scales<T>& scales, int64_t row,
                           int64_t column, unsigned char* stages,
                           float (&y)[M][kTensorTiles][4]) {
  const auto add = [&](int64_t chunk, const unsigned char* stage, const ChunkBits<Codes>& bits) {
#pragma unroll 1
    for (int group = 0; group << plan.shift < kChunk; ++group) {
      const int64_t k = chunk * kChunk + (static_cast<int64_t>(group) << plan.shift);
      if (k < args.weight.columns) {
        float sums[M][kTensorTiles][4] = {};
        float ones[M][4] = {};
        multiply_group<T, Codes, M>(stage, bits, plan.shift, group, sums, ones);
        add_group<T, Codes, M>(scales, args.weight.groups == 1 ? 0 : weight.group_size.divide(k),
                               args.weight.rows - column, sums, ones, y);
      }
    }
  };
  for_each_chunk<T, Codes, M>(args, weight, row, column, stages, add);
}

template <typename T, typename Codes, int M>
__global__ void __launch_bounds__(kWarp* kTensorWarps, kTensorBlocks<M>)
    linear_tiles(const __grid_constant__ LinearArgs args,
                 const __grid_constant__ WeightReader<typename Codes::Stored> weight,
                 const TensorPlan plan) {
  if constexpr (kHasTensorCores) {
    FUSEWHEEL_DYNAMIC_SHARED(unsigned char, memory);
    const int64_t column = static_cast<int64_t>(blockIdx.x) * kTensorColumns;
    const int64_t row = static_cast<int64_t>(blockIdx.y) * (M * kMmaRows);
    const Scales<T> scales(args.weight, plan, column, memory + kStagesBytes<M>);
    unsigned char* stages = memory + threadIdx.y * kStages<M> * kStageBytes<M>;
    float y[M][kTensorTiles][4] = {};
    add_chunks<T, Codes, M>(args, weight, plan, scales, row, column, stages, y);
    const unsigned odd = write_sums<T, M>(args, row, column, y, reinterpret_cast<float*>(memory));
    write_scaled_sums<T>(args, weight, row, column, odd);
  }
}

template <typename T, typename Codes, int M>
bool tensor_launch(const char* op, const LinearArgs& args, Stream stream) {
  const TensorPlan plan(args.weight, args.x_dtype);
  return launch_tiles<M>(op, linear_tiles<T, Codes, M>, args, plan.staged(), stream,
                         WeightReader<typename Codes::Stored>(args.weight), plan);
}

// Whether vectors can be read as the kernel does, and groups are whole in its chunks or the other way.
template <typename T, typename Codes>
bool can_use_tensor_cores(const LinearArgs& args) {
  const LinearWeight& weight = args.weight;
  const WeightReader<typename Codes::Stored> reader(weight);
  const bool groups = weight.groups == 1 || weight.group_size % kChunk == 0 ||
                      (kChunk % weight.group_size == 0 && weight.group_size >= kLeastGroup);
  return groups && args.y_dtype == args.x_dtype && reader.aligned &&
         weight.columns % reader.kElements == 0 && has_vectors(args.x, args.x_stride, kLanes<T>);
}

// Whether it has computed y: for that, x is in a half type, and the GPU has tensor cores for both.
template <typename Codes>
bool tensor_launch(const char* op, const LinearArgs& args, Stream stream) {
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    if (!can_use_tensor_cores<T, Codes>(args)) {
      return false;
    }
    return args.rows <= kMmaRows ? tensor_launch<T, Codes, 1>(op, args, stream)
                                 : tensor_launch<T, Codes, 2>(op, args, stream);
  };
  switch (args.x_dtype) {
    case Dtype::kBFloat16: return run(__nv_bfloat16{});
    case Dtype::kFloat16: return run(__half{});
    default: return false;
  }
}

}  // namespace
}  // namespace fusewheel
