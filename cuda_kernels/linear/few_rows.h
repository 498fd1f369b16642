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

// What lane `half` of two reads first: the words of 128 bits whose elements begin there.
__device__ inline uint4 turned(const uint4& bits, int half) {
  return half == 0 ? bits : uint4{bits.z, bits.w, bits.x, bits.y};
}

// y = x * transposed weight + bias, for at most R rows by_vectors. A warp has 2 columns of y, each half
// of its lanes one of them, and adds up what their vectors of the weight give, in an order that depends
// on the shape alone.
//
// Both halves need the same part of x, which is twice as wide as what a lane reads at a time. One half
// begins with the front of it, the other with the back, so that neighbouring bytes are asked for
// together.
template <typename X, typename Codes, int R, int C>
__global__ void __launch_bounds__(kWarp* kLinearWarps, 1)  // the 1: rather fewer blocks than spills
    few_rows(const __grid_constant__ LinearArgs args,
             const __grid_constant__ WeightReader<Codes> weight) {
  using A = Accumulate<X>;
  constexpr int V = Codes::kPart;
  constexpr int kHalf = kWarp / C;
  constexpr int kAtOnce = 2;  // vectors of a lane, whose loads are under way together
  // With several rows the work on a part is large against the cost of a loop.
  [[maybe_unused]] constexpr int kUnrolled = R == 1 ? kAtOnce * Codes::kParts : 1;
  static_assert(C == 2 && R <= kHalf, "a lane for each result");
  const int lane = threadIdx.x % kHalf;
  const int half = threadIdx.x / kHalf;
  const int64_t columns = args.weight.rows;
  const int64_t size = args.weight.columns;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t n = warp * C; n < columns; n += warps * C) {
    const int64_t column = n + half;
    const int64_t own = column < columns ? column : columns - 1;
    A sums[R] = {};
    for (int64_t begin = lane; begin < weight.vectors(); begin += kHalf * kAtOnce) {
      uint4 bits[kAtOnce];
      Scale<A> scales[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int64_t vector = begin + i * kHalf;
        if (vector < weight.vectors()) {
          bits[i] = turned(weight.bits(own, vector), half);
          scales[i] = weight.template scale<A>(own, vector);
        }
      }
#pragma unroll kUnrolled
      for (int i = 0; i < kAtOnce * Codes::kParts; ++i) {
        const int64_t vector = begin + i / Codes::kParts * kHalf;
        if (vector >= weight.vectors()) {
          break;
        }
        const int part = i % Codes::kParts;
        const int64_t k = vector * weight.kElements + part * V;
        A w[V];
        Codes::decode(one_of(bits, i / Codes::kParts), part, one_of(scales, i / Codes::kParts), w);
#pragma unroll
        for (int piece = 0; piece < 2; ++piece) {
          constexpr int kPiece = V / 2;
          const int64_t at = k + (piece ^ half) * kPiece;
          const int64_t live = size - at;
          A own_w[kPiece];
#pragma unroll
          for (int j = 0; j < kPiece; ++j) {
            // Zero times an infinite scale is not zero.
            own_w[j] = j < live ? w[piece * kPiece + j] : A{};
          }
#pragma unroll
          for (int r = 0; r < R; ++r) {
            if (r < args.rows) {
              const auto* x = static_cast<const X*>(args.x) + r * args.x_stride + at;
              A values[kPiece];
              load(x, values);
              sums[r] += dot(values, own_w);
            }
          }
        }
      }
    }
    A result = 0;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const A sum = warp_reduce<Plus>(sums[r], kHalf);
      result = lane == r ? sum : result;
    }
    if (lane < R && lane < args.rows && column < columns) {
      if (args.bias != nullptr) {
        result += load_one<A>(args.bias, args.bias_dtype, column);
      }
      store_one(result, args.y, args.y_dtype, lane * columns + column);
    }
  }
}

template <typename X, typename Codes>
void few_rows_launch(const char* op, const LinearArgs& args, Stream stream) {
  const WeightReader<Codes> weight(args.weight);
  const auto run = [&](auto rows) {
    constexpr int kColumns = 2;  // share what is read of x
    const auto blocks = blocks_for(args.weight.rows, kColumns * kLinearWarps);
    launch(op, few_rows<X, Codes, decltype(rows)::value, kColumns>, blocks,
           dim3(kWarp, kLinearWarps), 0, stream, args, weight);
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
  switch (args.x_dtype) {
    case Dtype::kBFloat16: return few_rows_launch<__nv_bfloat16, Codes>(op, args, stream);
    case Dtype::kFloat16: return few_rows_launch<__half, Codes>(op, args, stream);
    default: return few_rows_launch<float, Codes>(op, args, stream);
  }
}

}  // namespace
}  // namespace fusewheel
