// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), row by row

#include "rms_norm.h"

#include "add_rows.h"

namespace fusewheel {
namespace {

template <int V, typename T>
__device__ void load_weight(const T* weight, Accumulate<T> (&to)[V], RmsNormCast cast) {
  load(weight, to);
  if (cast == RmsNormCast::kGemma) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      to[i] += 1;
    }
  }
}

template <typename T, int V>
__global__ void __launch_bounds__(kMaxRowThreads) rms_norm_rows(const AddRmsNormArgs call) {
  using A = Accumulate<T>;
  const RmsNormArgs& args = call.norm;
  const auto* weight = static_cast<const T*>(args.weight);
  const int64_t step = blockDim.x * V;
  // Every thread takes part in the sums, also of rows beyond the last: those have size 0.
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * blockDim.y; block < args.count;
       block += static_cast<int64_t>(gridDim.x) * blockDim.y) {
    const int64_t row = block + threadIdx.y;
    const int64_t size = row < args.count ? args.size : 0;
    const auto* x = static_cast<const T*>(args.x) + row * args.x_stride;
    auto* y = static_cast<T*>(args.y) + row * args.size;
    A sum = 0;
    for (int64_t i = threadIdx.x * V; i < size; i += step) {
      A values[V];
      read_sum(call.add, x, row, i, values);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        sum += values[k] * values[k];
      }
    }
    const A mean = row_sum(sum) / static_cast<A>(args.size);
    const A rstd = 1 / square_root(mean + static_cast<A>(args.eps));
    if (threadIdx.x == 0 && row < args.count) {
      static_cast<A*>(args.rstd)[row] = rstd;
    }
    for (int64_t i = threadIdx.x * V; i < size; i += step) {
      A values[V];
      A gains[V];
      load(x + i, values);
      load_weight(weight + i, gains, args.cast);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        A normalised = values[k] * rstd;
        if (args.cast == RmsNormCast::kLlama) {
          normalised = round_to<T>(normalised);
        }
        values[k] = normalised * gains[k];
      }
      store(y + i, values);
    }
  }
}

// With h = x * rstd and g = grad * weight: grad_x = rstd * (g - h * mean(g * h)) and
// grad_weight = sum over rows of grad * h. A row of threads walks through one chunk of rows; each
// thread keeps the weight gradient of its own columns, in shared memory where that is large enough.
template <typename T, int V>
__global__ void __launch_bounds__(kMaxRowThreads, kRowBlocks<T>)
    rms_norm_backward_rows(const AddRmsNormBackwardArgs call, bool use_shared) {
  using A = Accumulate<T>;
  const RmsNormBackwardArgs& args = call.norm;
  const auto* weight = static_cast<const T*>(args.weight);
  const int64_t first = threadIdx.x * V;
  const int64_t step = blockDim.x * V;
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t columns = chunk < args.chunks ? args.size : 0;
  FUSEWHEEL_DYNAMIC_SHARED(A, shared);
  A* partial = static_cast<A*>(args.partials) + chunk * args.size;
  A* total = use_shared ? shared + threadIdx.y * args.size : partial;
  for (int64_t i = first; i < columns; i += step) {
    const A zeros[V] = {};
    store_pieces(total, i, args.size, zeros);
  }
  // The same number of rounds for every thread of the block: they meet in the sums.
  const int64_t begin = chunk * args.count / args.chunks;
  const int64_t end = (chunk + 1) * args.count / args.chunks;
  const auto rounds = static_cast<int>((args.count + args.chunks - 1) / args.chunks);
  for (int round = 0; round < rounds; ++round) {
    const int64_t row = begin + round;
    const int64_t size = row < end ? columns : 0;
    const auto* grad = static_cast<const T*>(args.grad) + row * args.grad_stride;
    const auto* x = static_cast<const T*>(args.x) + row * args.x_stride;
    auto* grad_x = static_cast<T*>(args.grad_x) + row * args.size;
    const A rstd = size > 0 ? static_cast<const A*>(args.rstd)[row] : A{};
    A dot = 0;
    for (int64_t i = first; i < size; i += step) {
      A dy[V];
      A h[V];
      A gains[V];
      load(grad + i, dy);
      load(x + i, h);
      load_weight(weight + i, gains, args.cast);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        h[k] *= rstd;
        dot += dy[k] * gains[k] * h[k];
        h[k] = dy[k] * (args.cast == RmsNormCast::kLlama ? round_to<T>(h[k]) : h[k]);
      }
      add_sums(total, i, args.size, h);
    }
    const A mean = row_sum(dot) / static_cast<A>(args.size);
    for (int64_t i = first; i < size; i += step) {
      A dy[V];
      A h[V];
      A gains[V];
      load(grad + i, dy);
      load(x + i, h);
      load_weight(weight + i, gains, args.cast);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        dy[k] = rstd * (dy[k] * gains[k] - h[k] * rstd * mean);
      }
      add_grad_sum<T>(call.add, row, i, dy);
      store(grad_x + i, dy);
    }
  }
  if (use_shared) {
    for (int64_t i = first; i < columns; i += step) {
      A sums[V];
      load_pieces(total, i, args.size, sums);
      store_pieces(partial, i, args.size, sums);
    }
  }
}

}  // namespace

void rms_norm_forward(const char* op, const AddRmsNormArgs& call, Stream stream) {
  const RmsNormArgs& args = call.norm;
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors = has_vectors(args.x, args.x_stride, kLanes<T>) &&
                         has_vectors(args.y, args.size, kLanes<T>) && is_aligned(args.weight) &&
                         has_vectors(call.add, kLanes<T>);
    for_width<T>(vectors, [&](auto lanes) {
      constexpr int V = decltype(lanes)::value;
      const dim3 block = row_block(args.size / V, 128);
      launch(op, rms_norm_rows<T, V>, blocks_for(args.count, block.y), block, 0, stream, call);
    });
  });
}

// No rows leave the weight gradient zero, which still has to be written.
void rms_norm_backward(const char* op, const AddRmsNormBackwardArgs& call, Stream stream) {
  const RmsNormBackwardArgs& args = call.norm;
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors = has_vectors(args.grad, args.grad_stride, kLanes<T>) &&
                         has_vectors(args.x, args.x_stride, kLanes<T>) &&
                         has_vectors(args.grad_x, args.size, kLanes<T>) &&
                         is_aligned(args.weight) && is_aligned(args.partials) &&
                         has_vectors(call.add, kLanes<T>);
    for_width<T>(vectors, [&](auto lanes) {
      constexpr int V = decltype(lanes)::value;
      const dim3 block = row_block(args.size / V, 256);
      const size_t needed = block.y * static_cast<size_t>(args.size) * sizeof(Accumulate<T>);
      const bool use_shared = needed <= kSharedBytes;
      const auto blocks = static_cast<unsigned>((args.chunks + block.y - 1) / block.y);
      launch(op, rms_norm_backward_rows<T, V>, blocks, block, use_shared ? needed : 0, stream,
             call, use_shared);
      const ColumnSums<T> sums(args.partials, args.grad_weight);
      launch_sum_chunks<T, V>(op, sums, sums, 1, args.chunks, args.size, stream);
    });
  });
}

void rms_norm_launch(const RmsNormArgs& args, Stream stream) {
  rms_norm_forward("rms_norm", {{}, args}, stream);
}

void rms_norm_backward_launch(const RmsNormBackwardArgs& args, Stream stream) {
  rms_norm_backward("rms_norm_backward", {{}, args}, stream);
}

}  // namespace fusewheel
