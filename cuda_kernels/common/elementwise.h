// Runs body(in, out, scalar) for every element of a merged geometry; `in` and `out` are arrays with
// one value per operand.
#pragma once

#include "divide.h"
#include "launch.h"
#include "vector.h"

namespace fusewheel {
namespace {

constexpr int kBlock = 256;

template <typename T>
constexpr int kBlocks = kBlocksInDouble<T, 3>;

// Elements of a thread at a time. float64 is there for checks: its code is small rather than fast.
template <typename T>
constexpr int kTogether = sizeof(T) == sizeof(double) ? 1 : kLanes<T>;

// Every operand contiguous, in one order: the usual call, with few parameters to send.
template <int operands>
struct Flat {
  void* data[operands];
  int64_t numel;
  double scalar;
  bool aligned;
};

// V elements at offsets[k] of each operand k; only the first `count` of them exist.
template <typename T, int outputs, int inputs, int V, typename Body>
__device__ void step(void* const* data, const int64_t* offsets,
                     const int64_t (*strides)[kMergedDims], int64_t count, Accumulate<T> scalar, const Body& body) {
  using A = Accumulate<T>;
  A in[inputs][V];
  A out[outputs][V];
#pragma unroll
  for (int k = 0; k < inputs; ++k) {
    const T* from = static_cast<const T*>(data[outputs + k]) + offsets[outputs + k];
    if (V > 1 && strides != nullptr && strides[outputs + k][0] == 0) {
      const A value = widen(*from);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        in[k][i] = value;
      }
    } else if (count >= V) {
      load(from, in[k]);
    } else {
      load(from, in[k], count);
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    A arguments[inputs];
    A results[outputs];
#pragma unroll
    for (int k = 0; k < inputs; ++k) {
      arguments[k] = in[k][i];
    }
    body(arguments, results, scalar);
#pragma unroll
    for (int k = 0; k < outputs; ++k) {
      out[k][i] = results[k];
    }
  }
#pragma unroll
  for (int k = 0; k < outputs; ++k) {
    T* to = static_cast<T*>(data[k]) + offsets[k];
    if (count >= V) {
      store(to, out[k]);
    } else {
      store(to, out[k], count);
    }
  }
}

template <typename T, int outputs, int inputs, typename Body>
__global__ void __launch_bounds__(kBlock, kBlocks<T>)
    flat_kernel(const Flat<outputs + inputs> args, Body body) {
  constexpr int operands = outputs + inputs;
  const auto scalar = static_cast<Accumulate<T>>(args.scalar);
  const auto run = [&](int64_t i, auto lanes) {
    int64_t offsets[operands];
#pragma unroll
    for (int k = 0; k < operands; ++k) {
      offsets[k] = i;
    }
    constexpr int V = decltype(lanes)::value;
    step<T, outputs, inputs, V>(args.data, offsets, nullptr, V, scalar, body);
  };
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kBlock;
  const int64_t vectors = args.aligned ? args.numel / kTogether<T> : 0;
  for (int64_t i = thread; i < vectors; i += threads) {
    run(i * kTogether<T>, std::integral_constant<int, kTogether<T>>());
  }
  for (int64_t i = vectors * kTogether<T> + thread; i < args.numel; i += threads) {
    run(i, std::integral_constant<int, 1>());
  }
}

// Any layout. A run is a pass along the innermost dimension; its last vector may be partial.
template <int operands>
struct Strided {
  ElementwiseArgs<operands> args;
  Divisor sizes[kMergedDims];
  Divisor vectors;  // of a run
  int64_t items;    // vectors in all

  Strided(const ElementwiseArgs<operands>& args, int64_t lanes)
      : args(args), vectors((args.geometry.sizes[0] + lanes - 1) / lanes) {
    items = static_cast<int64_t>(vectors.divisor);
    for (int d = 1; d < args.geometry.dims; ++d) {
      sizes[d] = Divisor(args.geometry.sizes[d]);
      items *= args.geometry.sizes[d];
    }
  }
};

template <typename T, int outputs, int inputs, int V, typename Body>
__global__ void __launch_bounds__(kBlock, kBlocks<T>)
    strided_kernel(const __grid_constant__ Strided<outputs + inputs> plan, Body body) {
  constexpr int operands = outputs + inputs;
  const auto& g = plan.args.geometry;
  const auto scalar = static_cast<Accumulate<T>>(plan.args.scalar);
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kBlock;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x; item < plan.items;
       item += threads) {
    uint64_t rest = plan.vectors.divide(item);
    const int64_t inner = (item - rest * plan.vectors.divisor) * V;
    int64_t offsets[operands];
#pragma unroll
    for (int k = 0; k < operands; ++k) {
      offsets[k] = inner * g.strides[k][0];
    }
    // Unrolled, it would be a third of the code.
#pragma unroll 1
    for (int d = 1; d < g.dims; ++d) {
      const uint64_t outer = plan.sizes[d].divide(rest);
      const int64_t position = rest - outer * plan.sizes[d].divisor;
      rest = outer;
#pragma unroll
      for (int k = 0; k < operands; ++k) {
        offsets[k] += position * g.strides[k][d];
      }
    }
    step<T, outputs, inputs, V>(plan.args.data, offsets, g.strides, g.sizes[0] - inner, scalar,
                                body);
  }
}

template <int operands>
bool is_flat(const Geometry<operands>& g) {
  bool flat = g.dims == 1;
  for (int k = 0; k < operands; ++k) {
    flat = flat && g.strides[k][0] == 1;
  }
  return flat;
}

// Every vector along the innermost dimension is aligned, or one element repeated.
template <int operands>
bool has_vectors(const ElementwiseArgs<operands>& args, int64_t lanes) {
  const auto& g = args.geometry;
  for (int k = 0; k < operands; ++k) {
    if (g.strides[k][0] == 0) {
      continue;
    }
    if (g.strides[k][0] != 1 || !is_aligned(args.data[k])) {
      return false;
    }
    for (int d = 1; d < g.dims; ++d) {
      if (g.strides[k][d] % lanes != 0) {
        return false;
      }
    }
  }
  return g.sizes[0] >= lanes;
}

template <int outputs, int inputs, typename Body>
void elementwise(const char* op, const ElementwiseArgs<outputs + inputs>& args, Body body,
                 Stream stream) {
  constexpr int operands = outputs + inputs;
  const auto& g = args.geometry;
  if (g.numel == 0) {
    return;
  }
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto strided = [&](auto lanes) {
      constexpr int V = decltype(lanes)::value;
      const Strided<operands> plan(args, V);
      launch(op, strided_kernel<T, outputs, inputs, V, Body>, blocks_for(plan.items, kBlock),
             kBlock, 0, stream, plan, body);
    };
    if constexpr (kTogether<T> > 1) {
      if (is_flat(g)) {
        Flat<operands> flat{{}, g.numel, args.scalar, true};
        for (int k = 0; k < operands; ++k) {
          flat.data[k] = args.data[k];
          flat.aligned = flat.aligned && is_aligned(args.data[k]);
        }
        const int64_t items = flat.aligned ? g.numel / kTogether<T> + 1 : g.numel;
        return launch(op, flat_kernel<T, outputs, inputs, Body>, blocks_for(items, kBlock), kBlock,
                      0, stream, flat, body);
      }
      if (has_vectors(args, kTogether<T>)) {
        return strided(std::integral_constant<int, kTogether<T>>());
      }
    }
    strided(std::integral_constant<int, 1>());
  });
}

}  // namespace
}  // namespace fusewheel
