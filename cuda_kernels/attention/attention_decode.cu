// Attention of a few queries to a cache: a block has some of the keys of a sequence, and a second
// kernel merges what the blocks have found
//
// Dao et al., "Flash-Decoding for long-context inference" (2023). A part has a fixed number of keys,
// and parts are merged in their order, so that the bits do not depend on the GPU.

#include "tensor_decode.h"

namespace fusewheel {
namespace {

// How many blocks a multiprocessor should run at a time. Sums of values take most registers.
template <typename C, typename A, int kRows>
constexpr int kDecodeBlocks = kRows * kValueLanes<C> * sizeof(A) <= 128 ? 4 : 3;

template <typename C, typename A, int kRows>
__global__ void __launch_bounds__(kDecodeThreads, kDecodeBlocks<C, A, kRows>)
    attend_part(const __grid_constant__ DecodePlan call, bool k_vectors, bool v_vectors) {
  using Memory = PartMemory<A, kRows>;
  FUSEWHEEL_DYNAMIC_SHARED(Memory, shared);
  for (int64_t index = blockIdx.x; index < call.tasks; index += gridDim.x) {
    const PartTask<kRows> task(call, index);
    if (task.from >= task.to) {
      continue;
    }
    // What the task before has left there has been read: its `row_reduce` is a barrier.
    if (find_places(call, task, shared->places)) {
      for (int r = threadIdx.x; r < task.rows; r += kDecodeThreads) {
        task.template found<A>(call, r)[kPartPeak] = static_cast<A>(NAN);
      }
      continue;
    }
    multiply_keys<C>(call, task, k_vectors, *shared);
    take_exponentials<C>(call, task, *shared);
    const unsigned odd = add_values<C>(call, task, v_vectors, *shared);
    for (int r = threadIdx.x; r < task.rows; r += kDecodeThreads) {
      task.template found<A>(call, r)[kPartOdd] = odd >> r & 1 ? static_cast<A>(NAN) : A{};
    }
  }
}

// A warp has a query.
template <typename A>
__global__ void __launch_bounds__(kDecodeThreads)
    merge_parts(const __grid_constant__ DecodeCall call, int64_t rows) {
  const auto& shape = call.args.shape;
  constexpr int kOwn = 4;  // columns of a thread at a time
  const int64_t warps = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
       row += warps) {
    const int64_t of_sequence = shape.heads * shape.queries;
    const int64_t batch = row / of_sequence;
    const int64_t own = row % of_sequence;
    const int64_t head = own / shape.queries;
    const auto found_of = [&](int64_t part) {
      return found_at<A>(call, (batch * call.parts + part) * of_sequence + own);
    };
    const int64_t length = length_of(call, batch);
    const bool wrong = length < 0 || length > capacity_of(call);
    const int64_t begin = wrong ? 0 : first_key(shape, length, 0) / kDecodePart;
    const int64_t end = wrong ? 0 : (length + kDecodePart - 1) / kDecodePart;
    const A sink = call.args.sinks == nullptr
                       ? -static_cast<A>(INFINITY)
                       : load_one<A>(call.args.sinks, shape.dtype, head);
    A peak = wrong ? static_cast<A>(NAN) : sink;
    for (int64_t part = begin; part < end; ++part) {
      peak = Larger()(peak, found_of(part)[kPartPeak]);
    }
    const A base = peak == -static_cast<A>(INFINITY) ? 0 : peak;
    A total = exponential(sink - base);
    A odd = 0;
    for (int64_t part = begin; part < end && peak == peak; ++part) {
      const A* found = found_of(part);
      total += found[kPartTotal] * exponential(found[kPartPeak] - base);
      odd += found[kPartOdd];
    }
    if (threadIdx.x == 0) {
      const double logsumexp =
          static_cast<double>(peak) + logarithm(static_cast<double>(total));
      static_cast<A*>(call.args.logsumexp)[row] =
          total == 0 ? -static_cast<A>(INFINITY) : static_cast<A>(logsumexp);
    }
    // Of a query that sees no key, all sums are 0.
    const A divisor = total == 0 ? 1 : total;
    for (int64_t column = threadIdx.x; column < shape.value_size; column += kOwn * kWarp) {
      A sums[kOwn] = {};
      for (int64_t part = begin; part < end && peak == peak; ++part) {
        const A* found = found_of(part);
        const A share = exponential(found[kPartPeak] - base);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          if (column + i * kWarp < shape.value_size) {
            sums[i] += share * found[kPartHead + column + i * kWarp];
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        if (column + i * kWarp < shape.value_size) {
          store_one((sums[i] + odd) / divisor, call.args.out, shape.dtype,
                    row * shape.value_size + column + i * kWarp);
        }
      }
    }
  }
}

// Whether every row of a cache begins at a multiple of so many bytes.
bool has_vectors(const Cache& cache, int64_t element, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(cache.data) % static_cast<uintptr_t>(bytes) == 0 &&
         cache.page * element % bytes == 0 && cache.key * element % bytes == 0 &&
         cache.head * element % bytes == 0;
}

template <typename C, typename A, int kRows>
void launch_parts(const DecodeCall& call, Stream stream) {
  constexpr auto kElement = static_cast<int64_t>(sizeof(C));
  const DecodePlan plan(call, kRows);
  launch("attention_decode", attend_part<C, A, kRows>, blocks_for(plan.tasks, 1), kDecodeThreads,
         sizeof(PartMemory<A, kRows>), stream, plan,
         has_vectors(call.args.k, kElement, kElement * kKeyLanes<C>),
         has_vectors(call.args.v, kElement, kElement * kValueLanes<C>));
}

// With room for as few queries as there are.
template <typename C, typename A>
void launch_for_rows(const DecodeCall& call, Stream stream) {
  const auto& shape = call.args.shape;
  const int64_t rows = shape.heads / shape.kv_heads * shape.queries;
  if constexpr (sizeof(C) == 2) {
    if (rows > 4 && shape.dtype == shape.cache_dtype && launch_tensor_parts<C>(call, stream)) {
      return;
    }
  }
  // float64 is there for checks. In half types tensor cores take most calls with more than four rows.
  if (rows == 1 || sizeof(A) == 8) {
    launch_parts<C, A, 1>(call, stream);
  } else if constexpr (sizeof(A) == 4) {
    if (rows <= 4 || sizeof(C) == 2) {
      launch_parts<C, A, 4>(call, stream);
    } else if constexpr (sizeof(C) != 2) {
      launch_parts<C, A, 8>(call, stream);
    }
  }
}

}  // namespace

void attention_decode_launch(const DecodeCall& call, Stream stream) {
  const auto& shape = call.args.shape;
  const bool wide = shape.dtype == Dtype::kFloat64;
  if (!shape.is_int8) {
    for_dtype(shape.cache_dtype, [&](auto zero) {
      launch_for_rows<decltype(zero), Accumulate<decltype(zero)>>(call, stream);
    });
  } else if (wide) {
    launch_for_rows<int8_t, double>(call, stream);
  } else {
    launch_for_rows<int8_t, float>(call, stream);
  }
  const int64_t rows = shape.batch * shape.heads * shape.queries;
  constexpr int kWarps = kDecodeThreads / kWarp;
  const auto merge = wide ? merge_parts<double> : merge_parts<float>;
  launch("attention_decode", merge, blocks_for(rows, kWarps), dim3(kWarp, kWarps), 0, stream, call,
         rows);
}

}  // namespace fusewheel
