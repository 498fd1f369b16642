// Cross entropy of a row's logits and its class; the formulas are in
// fusewheel/loss/cross_entropy_args.h
//
// A target that is no class cannot be refused here, where nobody waits for the device: its row is
// NaN.
//
// A row is read for its loss and again for its gradient. Caches hold a short row in between. Of a long
// one the block keeps the beginning in shared memory, as much as there is; it goes backwards the second
// time, so that of the rest it first meets what the caches still hold.

#include <fusewheel/loss/cross_entropy_args.h>

#include <cfloat>
#include <cmath>

#include "common/rows.h"

namespace fusewheel {
namespace {

template <typename A>
constexpr A kLowest = static_cast<A>(sizeof(A) == sizeof(float) ? -FLT_MAX : -DBL_MAX);

// A logit as the loss sees it.
template <typename A>
__device__ A cap(A x, A softcap) {
  return softcap > 0 ? softcap * hyperbolic_tangent(x / softcap) : x;
}

// The sum of exp(z - peak) for a peak that grows as z comes in; exp is never given anything positive.
template <typename A>
struct ExpSum {
  A peak = kLowest<A>;  // not -inf, from which nothing can be subtracted
  A sum = 0;

  template <int V>
  __device__ void add(const A (&z)[V]) {
    A higher = peak;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      higher = z[k] > higher ? z[k] : higher;
    }
    sum *= exponential(peak - higher);
    peak = higher;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      sum += exponential(z[k] - peak);
    }
  }
};

// In double precision 64 registers a thread would be too few.
template <typename T>
constexpr int kLongRowThreads = sizeof(T) == sizeof(double) ? 512 : 1024;
constexpr int64_t kLongRowBytes = 40 * 1024;
template <typename T>
constexpr int kBlocks = kBlocksInDouble<T, 1>;

// Of a long row the first `kept` elements are kept.
template <typename T, int V, bool is_long>
__global__ void __launch_bounds__(is_long ? kLongRowThreads<T> : kMaxRowThreads, kBlocks<T>)
    cross_entropy_rows(const CrossEntropyArgs args, int64_t kept) {
  using A = Accumulate<T>;
  FUSEWHEEL_DYNAMIC_SHARED(T, beginning);
  const auto* weight = static_cast<const T*>(args.weight);
  const auto softcap = static_cast<A>(args.softcap);
  const auto class_share = static_cast<A>(args.class_share);
  const auto z_loss = static_cast<A>(args.z_loss);
  const int64_t step = blockDim.x * V;
  const auto read = [&](const T* x, A (&z)[V], const T* w, A (&gains)[V]) {
    load(x, z);
    if (w != nullptr) {
      load(w, gains);
    }
    if (softcap > 0) {
#pragma unroll 1
      for (int k = 0; k < V; ++k) {
        z[0] = cap(z[0], softcap);
        turn(z);
      }
    }
#pragma unroll
    for (int k = 0; k < V; ++k) {
      gains[k] = w != nullptr ? gains[k] : 1;
    }
  };
  // Where the V logits from i on are to be read: the thread has put them there, or they are in x.
  const auto at = [&](const T* x, int64_t i) {
    return is_long && i < kept ? beginning + i : x + i;
  };
  // Every thread takes part in the sums, also of rows that have none.
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * blockDim.y; block < args.count;
       block += static_cast<int64_t>(gridDim.x) * blockDim.y) {
    const int64_t row = block + threadIdx.y;
    const bool exists = row < args.count;
    const int64_t target = exists ? args.target[row] : args.ignore_index;
    const bool ignored = target == args.ignore_index;
    const bool counts = !ignored && target >= 0 && target < args.classes;
    const int64_t size = counts ? args.classes : 0;
    const auto* x = static_cast<const T*>(args.logits) + row * args.stride;
    const A z_target = counts ? cap(widen(x[target]), softcap) : A{};
    // Differences to the target's logit, or to 0 where there are none: sums of large numbers would
    // cancel. So would lse - z.
    const A base = z_target < kLowest<A> ? A{} : z_target;
    // Where no class but the target has a share, the weights of the others are not read.
    const auto* gains_of = class_share != 0 ? weight : nullptr;
    ExpSum<A> total;
    A spread = 0;  // of w * (z - base)
    A gain = 0;
    for (int64_t i = threadIdx.x * V; i < size; i += step) {
      A z[V];
      A gains[V];
      if (is_long && i < kept) {
        *reinterpret_cast<uint4*>(beginning + i) = *reinterpret_cast<const uint4*>(x + i);
      }
      read(at(x, i), z, gains_of == nullptr ? nullptr : gains_of + i, gains);
      total.add(z);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        spread += class_share != 0 ? gains[k] * (z[k] - base) : 0;
        gain += gains[k];
      }
    }
    const A peak = row_max(total.peak);
    const A exp_sum = row_sum(total.sum * exponential(total.peak - peak));
    spread = row_sum(spread);
    gain = row_sum(gain);
    const A log_sum = logarithm(exp_sum);
    const A lse = peak + log_sum;
    const A share = static_cast<A>(args.target_share) *
                    (counts && weight != nullptr ? widen(weight[target]) : 1);
    const A fill = ignored ? A{} : static_cast<A>(NAN);
    if (threadIdx.x == 0 && exists) {
      A loss = share * ((peak - z_target) + log_sum);
      loss += class_share != 0 ? class_share * (gain * ((peak - base) + log_sum) - spread) : 0;
      loss += z_loss != 0 ? z_loss * lse * lse : 0;
      static_cast<A*>(args.loss)[row] = counts ? loss : fill;
      static_cast<A*>(args.logsumexp)[row] = counts ? lse : fill;
    }
    if (args.grad == nullptr || !exists) {
      continue;
    }
    auto* grad = static_cast<T*>(args.grad) + row * args.classes;
    const A scale = args.row_grad == nullptr ? A{1} : static_cast<const A*>(args.row_grad)[row];
    const A factor = (share + class_share * gain + 2 * z_loss * lse) / exp_sum;
    const int64_t steps = (args.classes - 1) / step * step;
    const int64_t last = steps + threadIdx.x * V;
    for (int64_t i = last < args.classes ? last : last - step; i >= 0; i -= step) {
      A slopes[V];
      A gains[V];
      if (counts) {
        read(at(x, i), slopes, gains_of == nullptr ? nullptr : gains_of + i, gains);
      }
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const A z = slopes[k];
        const A own = i + k == target ? share : A{};
        const A others = class_share != 0 ? class_share * gains[k] : 0;
        const A flat = softcap > 0 ? 1 - (z / softcap) * (z / softcap) : 1;
        // The share of the target last: so nothing is left where there is a single class.
        const A slope = exponential(z - peak) * factor - others - own;
        slopes[k] = counts ? slope * flat * scale : fill;
      }
      store(grad + i, slopes);
    }
  }
}

template <typename T, int V>
__global__ void __launch_bounds__(kMaxRowThreads)
    cross_entropy_backward_rows(const CrossEntropyBackwardArgs args) {
  using A = Accumulate<T>;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < args.count;
       row += static_cast<int64_t>(gridDim.x) * blockDim.y) {
    const A scale = static_cast<const A*>(args.row_grad)[row];
    const auto* from = static_cast<const T*>(args.unit_grad) + row * args.stride;
    auto* to = static_cast<T*>(args.grad) + row * args.classes;
    for (int64_t i = threadIdx.x * V; i < args.classes; i += blockDim.x * V) {
      A values[V];
      load(from + i, values);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        values[k] *= scale;
      }
      store(to + i, values);
    }
  }
}

template <typename T, int V>
void launch_rows(const CrossEntropyArgs& args, Stream stream) {
  const auto bytes = args.classes * static_cast<int64_t>(sizeof(T));
  if constexpr (V > 1) {
    if (args.grad != nullptr && bytes > kLongRowBytes) {
      const auto kernel = cross_entropy_rows<T, V, true>;
      const auto most = static_cast<int64_t>(
          most_shared("cross_entropy", reinterpret_cast<const void*>(kernel)));
      const int64_t kept = (bytes < most ? bytes : most) / kVectorBytes * kVectorBytes;
      launch("cross_entropy", kernel, blocks_for(args.count, 1), kLongRowThreads<T>, kept,
             stream, args, kept / static_cast<int64_t>(sizeof(T)));
      return;
    }
  }
  const dim3 block = row_block(args.classes / V, 128);
  launch("cross_entropy", cross_entropy_rows<T, V, false>, blocks_for(args.count, block.y), block, 0,
         stream, args, int64_t{0});
}

}  // namespace

void cross_entropy_launch(const CrossEntropyArgs& args, Stream stream) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors = has_vectors(args.logits, args.stride, kLanes<T>) &&
                         has_vectors(args.grad, args.classes, kLanes<T>) &&
                         is_aligned(args.weight);
    for_width<T>(vectors, [&](auto lanes) {
      launch_rows<T, decltype(lanes)::value>(args, stream);
    });
  });
}

void cross_entropy_backward_launch(const CrossEntropyBackwardArgs& args, Stream stream) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors = has_vectors(args.unit_grad, args.stride, kLanes<T>) &&
                         has_vectors(args.grad, args.classes, kLanes<T>);
    for_width<T>(vectors, [&](auto lanes) {
      constexpr int V = decltype(lanes)::value;
      const dim3 block = row_block(args.classes / V, 128);
      launch("cross_entropy_backward", cross_entropy_backward_rows<T, V>,
             blocks_for(args.count, block.y), block, 0, stream, args);
    });
  });
}

}  // namespace fusewheel
