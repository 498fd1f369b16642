// y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var(x) + eps), row by row

#include "layer_norm.h"

#include "add_rows.h"

namespace fusewheel {
namespace {

// A weight or a bias; `absent` stands for one that is null.
template <int V, typename T>
__device__ void load_columns(const T* columns, int64_t i, Accumulate<T> absent,
                             Accumulate<T> (&to)[V]) {
  if (columns != nullptr) {
    load(columns + i, to);
    return;
  }
#pragma unroll
  for (int k = 0; k < V; ++k) {
    to[k] = absent;
  }
}

// Two passes for the variance: the second finds the row in the cache.
template <typename T, int V>
__global__ void __launch_bounds__(kMaxRowThreads) layer_norm_rows(const AddLayerNormArgs call) {
  using A = Accumulate<T>;
  const LayerNormArgs& args = call.norm;
  const auto* weight = static_cast<const T*>(args.weight);
  const auto* bias = static_cast<const T*>(args.bias);
  const int64_t first = threadIdx.x * V;
  const int64_t step = blockDim.x * V;
  // Every thread takes part in the sums, also of rows beyond the last: those have size 0.
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * blockDim.y; block < args.count;
       block += static_cast<int64_t>(gridDim.x) * blockDim.y) {
    const int64_t row = block + threadIdx.y;
    const int64_t size = row < args.count ? args.size : 0;
    const auto* x = static_cast<const T*>(args.x) + row * args.x_stride;
    auto* y = static_cast<T*>(args.y) + row * args.size;
    A sum = 0;
    for (int64_t i = first; i < size; i += step) {
      A values[V];
      read_sum(call.add, x, row, i, values);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        sum += values[k];
      }
    }
    // A few additions in double: where the mean is large, its last bits are the result's first.
    const A mean = static_cast<A>(row_sum<double>(sum) / static_cast<double>(args.size));
    A squares = 0;
    for (int64_t i = first; i < size; i += step) {
      A values[V];
      load(x + i, values);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        squares += (values[k] - mean) * (values[k] - mean);
      }
    }
    const A variance = row_sum(squares) / static_cast<A>(args.size);
    const A rstd = 1 / square_root(variance + static_cast<A>(args.eps));
    if (threadIdx.x == 0 && row < args.count) {
      static_cast<A*>(args.mean)[row] = mean;
      static_cast<A*>(args.rstd)[row] = rstd;
    }
    for (int64_t i = first; i < size; i += step) {
      A values[V];
      A gains[V];
      A shifts[V];
      load(x + i, values);
      load_columns(weight, i, A{1}, gains);
      load_columns(bias, i, A{0}, shifts);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        values[k] = (values[k] - mean) * rstd * gains[k] + shifts[k];
      }
      store(y + i, values);
    }
  }
}

// With h = (x - mean) * rstd and g = grad * weight:
// grad_x = rstd * (g - mean(g) - h * mean(g * h)), grad_weight = sum over rows of grad * h, and
// grad_bias that of grad. A row of threads walks through one chunk of rows; each thread keeps the
// sums of its own columns, in shared memory where that is large enough.
template <typename T, int V>
__global__ void __launch_bounds__(kMaxRowThreads, kRowBlocks<T>)
    layer_norm_backward_rows(const AddLayerNormBackwardArgs call, bool use_shared) {
  using A = Accumulate<T>;
  const LayerNormBackwardArgs& args = call.norm;
  const auto* weight = static_cast<const T*>(args.weight);
  const int64_t first = threadIdx.x * V;
  const int64_t step = blockDim.x * V;
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t columns = chunk < args.chunks ? args.size : 0;
  const bool parameters = args.weight_partials != nullptr;
  FUSEWHEEL_DYNAMIC_SHARED(A, shared);
  const auto partials = [&](int k) {
    return static_cast<A*>(k == 0 ? args.weight_partials : args.bias_partials) + chunk * args.size;
  };
  A* const own = shared + 2 * threadIdx.y * args.size;
  A* const totals[2] = {use_shared ? own : partials(0), use_shared ? own + args.size : partials(1)};
  for (int64_t i = first; parameters && i < columns; i += step) {
    const A zeros[V] = {};
    store_pieces(totals[0], i, args.size, zeros);
    store_pieces(totals[1], i, args.size, zeros);
  }
  // The same number of rounds for every thread of the block: they meet in the sums.
  int64_t row = chunk * args.count / args.chunks;
  const int64_t end = (chunk + 1) * args.count / args.chunks;
  for (int64_t left = (args.count + args.chunks - 1) / args.chunks; left > 0; --left, ++row) {
    const int64_t size = row < end ? columns : 0;
    const auto* grad = static_cast<const T*>(args.grad) + row * args.grad_stride;
    const auto* x = static_cast<const T*>(args.x) + row * args.x_stride;
    auto* grad_x = static_cast<T*>(args.grad_x) + row * args.size;
    const A mean = size > 0 ? static_cast<const A*>(args.mean)[row] : A{};
    const A rstd = size > 0 ? static_cast<const A*>(args.rstd)[row] : A{};
    A sum = 0;
    A dot = 0;
    for (int64_t i = first; i < size; i += step) {
      A dy[V];
      A h[V];
      A gains[V];
      load(grad + i, dy);
      load(x + i, h);
      load_columns(weight, i, A{1}, gains);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        h[k] = (h[k] - mean) * rstd;
        sum += dy[k] * gains[k];
        dot += dy[k] * gains[k] * h[k];
        h[k] *= dy[k];
      }
      if (parameters) {
        add_sums(totals[0], i, args.size, h);
        add_sums(totals[1], i, args.size, dy);
      }
    }
    const A mean_g = row_sum(sum) / static_cast<A>(args.size);
    const A mean_gh = row_sum(dot) / static_cast<A>(args.size);
    // The norm of a single element is constant, but grad * weight has been rounded.
    const A slope = args.size == 1 ? A{0} : rstd;
    for (int64_t i = first; i < size; i += step) {
      A dy[V];
      A h[V];
      A gains[V];
      load(grad + i, dy);
      load(x + i, h);
      load_columns(weight, i, A{1}, gains);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        dy[k] = slope * (dy[k] * gains[k] - mean_g - (h[k] - mean) * rstd * mean_gh);
      }
      add_grad_sum<T>(call.add, row, i, dy);
      store(grad_x + i, dy);
    }
  }
  for (int64_t i = first; parameters && use_shared && i < columns; i += step) {
    for (int k = 0; k < 2; ++k) {
      A sums[V];
      load_pieces(totals[k], i, args.size, sums);
      store_pieces(partials(k), i, args.size, sums);
    }
  }
}

}  // namespace

void layer_norm_forward(const char* op, const AddLayerNormArgs& call, Stream stream) {
  const LayerNormArgs& args = call.norm;
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors = has_vectors(args.x, args.x_stride, kLanes<T>) &&
                         has_vectors(args.y, args.size, kLanes<T>) && is_aligned(args.weight) &&
                         is_aligned(args.bias) && has_vectors(call.add, kLanes<T>);
    for_width<T>(vectors, [&](auto lanes) {
      constexpr int V = decltype(lanes)::value;
      const dim3 block = row_block(args.size / V, 128);
      launch(op, layer_norm_rows<T, V>, blocks_for(args.count, block.y), block, 0, stream,
             call);
    });
  });
}

// No rows leave the gradients of the parameters zero, which still has to be written.
void layer_norm_backward(const char* op, const AddLayerNormBackwardArgs& call,
                         Stream stream) {
  const LayerNormBackwardArgs& args = call.norm;
  const bool parameters = args.weight_partials != nullptr;
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors = has_vectors(args.grad, args.grad_stride, kLanes<T>) &&
                         has_vectors(args.x, args.x_stride, kLanes<T>) &&
                         has_vectors(args.grad_x, args.size, kLanes<T>) &&
                         is_aligned(args.weight) && is_aligned(args.weight_partials) &&
                         is_aligned(args.bias_partials) && has_vectors(call.add, kLanes<T>);
    for_width<T>(vectors, [&](auto lanes) {
      constexpr int V = decltype(lanes)::value;
      const dim3 block = row_block(args.size / V, 256);
      const size_t needed = 2 * block.y * static_cast<size_t>(args.size) * sizeof(Accumulate<T>);
      const bool use_shared = parameters && needed <= kSharedBytes;
      const auto blocks = static_cast<unsigned>((args.chunks + block.y - 1) / block.y);
      launch(op, layer_norm_backward_rows<T, V>, blocks, block, use_shared ? needed : 0, stream,
             call, use_shared);
      if (parameters) {
        launch_sum_chunks<T, V>(op, {args.weight_partials, args.grad_weight},
                                {args.bias_partials, args.grad_bias}, 2, args.chunks, args.size,
                                stream);
      }
    });
  });
}

void layer_norm_launch(const LayerNormArgs& args, Stream stream) {
  layer_norm_forward("layer_norm", {{}, args}, stream);
}

void layer_norm_backward_launch(const LayerNormBackwardArgs& args, Stream stream) {
  layer_norm_backward("layer_norm_backward", {{}, args}, stream);
}

}  // namespace fusewheel
