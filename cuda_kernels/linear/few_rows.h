// The product of a linear layer for few rows of x, where reading the weight is most of the work.
#pragma once

#include "args.h"
#include "common/reduce.h"
#include "weight.h"

namespace fusewheel {
namespace {

constexpr int kLinearWarps = 4;  // of a block

// In four chains, which run at once and round less than a long one.
template <int V, typename A>
__device__ A dot(const A (&a)[V], const A (&b)[V]) {
  A sums[4] = {};
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sums[i % 4] = multiply_add(a[i], b[i], sums[i % 4]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// y = x * transposed weight + bias, for at most R rows. A warp has C columns of y: it adds up what
// its lanes' vectors of the weight give, in an order that depends on the shape alone.
template <typename X, typename Codes, int R, int C>
__global__ void __launch_bounds__(kWarp* kLinearWarps, 1)  // the 1: rather fewer blocks than spills
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
            for (int c = 0; c < C; ++c) {
              sums[r][c] += dot(values, w[c]);
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
        own += load_one<A>(args.bias, args.bias_dtype, column);
      }
      store_one(own, args.y, args.y_dtype, row * columns + column);
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

}  // namespace
}  // namespace fusewheel
