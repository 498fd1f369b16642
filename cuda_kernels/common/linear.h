// Linear layers: a product for few rows of x, where reading the weight is most of the work, and the
// rounding of activations to 8 bits.
#pragma once

#include <fusewheel/linear.h>

#include "stream.h"

namespace fusewheel {

constexpr int64_t kFewRows = 16;

struct LinearArgs {
  LinearWeight weight;
  const void* x;
  int64_t rows;
  int64_t x_stride;
  Dtype x_dtype;
  const void* bias;  // or null
  Dtype bias_dtype;
  void* y;  // contiguous
  Dtype y_dtype;
};

struct RoundArgs {
  const void* x;  // no float64
  float* to;      // contiguous
  int64_t rows;
  int64_t stride;
  int64_t groups;  // of a row
  int64_t group_size;
  Dtype dtype;
};

}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

#include <cfloat>

#include "reduce.h"
#include "weight.h"

namespace fusewheel {
namespace {

constexpr int kLinearWarps = 4;  // of a block

__device__ inline void write(double value, void* to, Dtype, int64_t i) {
  static_cast<double*>(to)[i] = value;
}
__device__ inline void write(float value, void* to, Dtype dtype, int64_t i) {
  switch (dtype) {
    case Dtype::kBFloat16: return narrow(value, static_cast<__nv_bfloat16*>(to)[i]);
    case Dtype::kFloat16: return narrow(value, static_cast<__half*>(to)[i]);
    default: return narrow(value, static_cast<float*>(to)[i]);
  }
}

// y = x * transposed weight + bias, for at most R rows. A warp has C columns of y: it adds up what
// its lanes' vectors of the weight give, in an order that depends on the shape alone.
template <typename X, typename Codes, int R, int C>
__global__ void __launch_bounds__(kWarp* kLinearWarps)
    few_rows(const __grid_constant__ LinearArgs args,
             const __grid_constant__ WeightReader<Codes> weight, bool aligned) {
  using A = Accumulate<X>;
  constexpr int V = Codes::kPart;
  static_assert(R * C <= kWarp, "a lane for each result");
  const int lane = threadIdx.x;
  const int64_t columns = args.weight.rows;
  const int64_t size = args.weight.columns;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t n = warp * C; n < columns; n += warps * C) {
    A sums[R][C] = {};
    for (int64_t vector = lane; vector < weight.vectors(); vector += kWarp) {
      uint4 bits[C];
      Scale<A> scales[C];
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const int64_t row = n + c < columns ? n + c : columns - 1;
        bits[c] = weight.bits(row, vector);
        scales[c] = weight.template scale<A>(row, vector);
      }
#pragma unroll
      for (int part = 0; part < Codes::kParts; ++part) {
        const int64_t k = vector * weight.kElements + part * V;
        A w[C][V];
#pragma unroll
        for (int c = 0; c < C; ++c) {
          Codes::decode(bits[c], part, scales[c], w[c]);
          if (size - k < V) {
            // Zero times an infinite scale is not zero.
#pragma unroll
            for (int i = 0; i < V; ++i) {
              w[c][i] = i < size - k ? w[c][i] : A{};
            }
          }
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
          if (r < args.rows) {
            const auto* x = static_cast<const X*>(args.x) + r * args.x_stride + k;
            A values[V];
            if (aligned && size - k >= V) {
              load(x, values);
            } else {
              load(x, values, size - k);
            }
#pragma unroll
            for (int i = 0; i < V; ++i) {
#pragma unroll
              for (int c = 0; c < C; ++c) {
                sums[r][c] += values[i] * w[c][i];
              }
            }
          }
        }
      }
    }
    A own = 0;
#pragma unroll
    for (int i = 0; i < R * C; ++i) {
      const A sum = warp_sum(sums[i / C][i % C]);
      own = lane == i ? sum : own;
    }
    const int64_t row = lane / C;
    const int64_t column = n + lane % C;
    if (row < R && row < args.rows && column < columns) {
      if (args.bias != nullptr) {
        own += read<A>(args.bias, args.bias_dtype, column);
      }
      write(own, args.y, args.y_dtype, row * columns + column);
    }
  }
}

template <typename X, typename Codes>
void few_rows_launch(const char* op, const LinearArgs& args, Stream stream) {
  const WeightReader<Codes> weight(args.weight);
  const bool aligned = is_aligned(args.x) && args.x_stride % kLanes<X> == 0;
  const auto run = [&](auto rows) {
    constexpr int kColumns = 2;  // share what is read of x
    const auto blocks = blocks_for(args.weight.rows, kColumns * kLinearWarps);
    launch(op, few_rows<X, Codes, decltype(rows)::value, kColumns>, blocks,
           dim3(kWarp, kLinearWarps), 0, stream, args, weight, aligned);
  };
  if (args.rows == 1) {
    run(std::integral_constant<int, 1>());
  } else if (args.rows <= 4) {
    run(std::integral_constant<int, 4>());
  } else {
    run(std::integral_constant<int, kFewRows>());
  }
}

template <typename Codes>
void few_rows_launch(const char* op, const LinearArgs& args, Stream stream) {
  for_dtype(args.x_dtype,
            [&](auto zero) { few_rows_launch<decltype(zero), Codes>(op, args, stream); });
}

// x rounded to 255 steps per group: step = max |x| / 127, code = round(x * (127 / max |x|)), halves
// to even. A row of threads has a group.
__global__ inline void __launch_bounds__(kMaxRowThreads)
    round_activations(const RoundArgs args, Divisor groups) {
  const int64_t count = args.rows * args.groups;
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * blockDim.y; block < count;
       block += static_cast<int64_t>(gridDim.x) * blockDim.y) {
    const int64_t item = block + threadIdx.y;
    // Every thread takes part in the maximum, also of groups beyond the last: those have size 0.
    const int64_t size = item < count ? args.group_size : 0;
    const int64_t row = groups.divide(item);
    const int64_t from = row * args.stride + (item - row * args.groups) * args.group_size;
    float most = 0;
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
      most = Larger()(most, fabsf(read<float>(args.x, args.dtype, from + i)));
    }
    most = row_max(most);
    // A group of zeros, or of numbers so small that they vanish beside any weight.
    const float inverse = 127 / most > FLT_MAX ? 0 : 127 / most;
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
      const float code = rintf(read<float>(args.x, args.dtype, from + i) * inverse);
      args.to[item * args.group_size + i] = code * (most / 127);
    }
  }
}

inline void round_launch(const char* op, const RoundArgs& args, Stream stream) {
  const dim3 block = row_block(args.group_size, 128);
  launch(op, round_activations, blocks_for(args.rows * args.groups, block.y), block, 0, stream,
         args, Divisor(args.groups));
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE
