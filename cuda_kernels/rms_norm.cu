// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), row by row

#include <fusewheel/rms_norm.h>

#include "common/stream.h"

namespace fusewheel {
void rms_norm_launch(const RmsNormArgs&, Stream);
void rms_norm_backward_launch(const RmsNormBackwardArgs&, Stream);
}  // namespace fusewheel

#if FUSEWHEEL_DEVICE

#include "common/reduce.h"
#include "common/vector.h"

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
__global__ void __launch_bounds__(kMaxRowThreads) forward(const RmsNormArgs args) {
  using A = Accumulate<T>;
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
      load(x + i, values);
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
__global__ void __launch_bounds__(kMaxRowThreads, 1)  // the 1: rather fewer blocks than spills
    backward(const RmsNormBackwardArgs args, bool use_shared) {
  using A = Accumulate<T>;
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
    store(total + i, zeros);
  }
  // The same number of rounds for every thread of the block: they meet in the sums.
  const int64_t begin = chunk * args.count / args.chunks;
  const int64_t end = (chunk + 1) * args.count / args.chunks;
  const int64_t rounds = (args.count + args.chunks - 1) / args.chunks;
  for (int64_t round = 0; round < rounds; ++round) {
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
      A sums[V];
      load(grad + i, dy);
      load(x + i, h);
      load_weight(weight + i, gains, args.cast);
      load(total + i, sums);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        h[k] *= rstd;
        dot += dy[k] * gains[k] * h[k];
        sums[k] += dy[k] * (args.cast == RmsNormCast::kLlama ? round_to<T>(h[k]) : h[k]);
      }
      store(total + i, sums);
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
      store(grad_x + i, dy);
    }
  }
  if (use_shared) {
    for (int64_t i = first; i < columns; i += step) {
      A sums[V];
      load(total + i, sums);
      store(partial + i, sums);
    }
  }
}

// The chunks of a column are added in a fixed order: each thread some, then the threads'.
constexpr int kColumnThreads = 16;

template <typename T>
__global__ void __launch_bounds__(kWarp* kColumnThreads)
    weight_columns(const RmsNormBackwardArgs args) {
  using A = Accumulate<T>;
  __shared__ A sums[kColumnThreads][kWarp];
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * kWarp; block < args.size;
       block += static_cast<int64_t>(gridDim.x) * kWarp) {
    const int64_t column = block + threadIdx.x;
    const auto* partials = static_cast<const A*>(args.partials) + column;
    A sum = 0;
    if (column < args.size) {
#pragma unroll 4
      for (int64_t chunk = threadIdx.y; chunk < args.chunks; chunk += kColumnThreads) {
        sum += partials[chunk * args.size];
      }
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < args.size) {
      for (int i = 1; i < kColumnThreads; ++i) {
        sum += sums[i][threadIdx.x];
      }
      narrow(sum, static_cast<T*>(args.grad_weight)[column]);
    }
    __syncthreads();
  }
}

bool has_vectors(const void* rows, int64_t stride, int64_t lanes) {
  return is_aligned(rows) && stride % lanes == 0;
}

// Calls body(V) with the vector width that the rows of every operand allow.
template <typename T, typename Body>
void for_width(bool vectors, const Body& body) {
  if (vectors) {
    body(std::integral_constant<int, kLanes<T>>());
  } else {
    body(std::integral_constant<int, 1>());
  }
}

}  // namespace

void rms_norm_launch(const RmsNormArgs& args, Stream stream) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors = has_vectors(args.x, args.x_stride, kLanes<T>) &&
                         has_vectors(args.y, args.size, kLanes<T>) && is_aligned(args.weight);
    for_width<T>(vectors, [&](auto lanes) {
      constexpr int V = decltype(lanes)::value;
      const dim3 block = row_block(args.size / V, 128);
      launch("rms_norm", forward<T, V>, blocks_for(args.count, block.y), block, 0, stream, args);
    });
  });
}

// No rows leave the weight gradient zero, which still has to be written.
void rms_norm_backward_launch(const RmsNormBackwardArgs& args, Stream stream) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors = has_vectors(args.grad, args.grad_stride, kLanes<T>) &&
                         has_vectors(args.x, args.x_stride, kLanes<T>) &&
                         has_vectors(args.grad_x, args.size, kLanes<T>) &&
                         is_aligned(args.weight) && is_aligned(args.partials);
    for_width<T>(vectors, [&](auto lanes) {
      constexpr int V = decltype(lanes)::value;
      constexpr size_t kShared = 48 * 1024;  // what a kernel may use without asking
      const dim3 block = row_block(args.size / V, 256);
      const size_t needed = block.y * static_cast<size_t>(args.size) * sizeof(Accumulate<T>);
      const bool use_shared = needed <= kShared;
      const auto blocks = static_cast<unsigned>((args.chunks + block.y - 1) / block.y);
      launch("rms_norm_backward", backward<T, V>, blocks, block, use_shared ? needed : 0, stream,
             args, use_shared);
    });
    launch("rms_norm_backward", weight_columns<T>, blocks_for(args.size, kWarp),
           dim3(kWarp, kColumnThreads), 0, stream, args);
  });
}

}  // namespace fusewheel

#endif  // FUSEWHEEL_DEVICE

#if FUSEWHEEL_GLUE

#include "common/glue.h"

namespace fusewheel {
namespace {

// Chunks enough to fill a large GPU, few enough that adding them up is cheap. The number depends on
// the shape alone: the same bits on every GPU.
int64_t chunks_of(int64_t count, int64_t size) {
  const int64_t most = std::clamp<int64_t>((1 << 20) / std::max<int64_t>(size, 1), 256, 2048);
  return std::min<int64_t>(most, count / 8 + 1);
}

std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, const Tensor& weight, double eps,
                                    int64_t cast) {
  const RmsNorm call(x, weight, eps, cast);
  if (call.args.count > 0) {
    rms_norm_launch(call.args, OnDevice("rms_norm", x).stream());
  }
  return {call.y, call.rstd};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& x,
                                             const Tensor& weight, const Tensor& rstd,
                                             int64_t cast) {
  const RmsNormBackward call(grad, x, weight, rstd, cast, chunks_of);
  if (call.args.size > 0) {
    rms_norm_backward_launch(call.args, OnDevice("rms_norm_backward", x).stream());
  }
  return {call.grad_x, call.grad_weight};
}

FUSEWHEEL_KERNELS(library) {
  kernel<rms_norm>(library, "rms_norm");
  kernel<rms_norm_backward>(library, "rms_norm_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
