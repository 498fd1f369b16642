// Gradients of attention in half types by tensor cores, for the heads that tensor_attention.h has.
#pragma once

#include "packing.h"
#include "tensor_attention.h"
#include "tensor_gradient.h"

namespace fusewheel {
namespace {

// dot(grad, out) - grad_logsumexp, as `subtract` has it. The dot product is a product of tensor cores
// like that of `grad` and a value: with a single key, whose value is the result, the gradient of its
// score is exactly 0.
template <typename T, int D>
__global__ void __launch_bounds__(kTileThreads)
    subtract_tensor(const __grid_constant__ AttentionBackwardArgs args,
                    const __grid_constant__ Division division) {
  if constexpr (kHasTensorCores) {
    const auto& shape = args.forward.shape;
    FUSEWHEEL_DYNAMIC_SHARED(T, shared);
    for (int64_t index = blockIdx.x; index < division.tasks; index += gridDim.x) {
      const Task task(division, shape, index);
      const int64_t rows = shape.queries;
      const Head<T> grad(args.grad, task.batch, task.head, 0, rows, shape.value_size);
      const Head<T> out(args.forward.out, task.batch, task.head, 0, rows, shape.value_size);
      __syncthreads();  // what was there has been read
      begin_tile<D>(grad, task.first, shared);
      begin_tile<D>(out, task.first, shared + kHalfTile<D>);
      end_group_of_copies();
      wait_for_copies<0>();
      __syncthreads();
      const int own = threadIdx.x / kWarp * kWarpRows;
      float products[2][4] = {};  // of the warp's rows with each other
#pragma unroll
      for (int step = 0; step < D / kMmaInner; ++step) {
        uint32_t left[4];
        uint32_t right[4];
        load_left<D>(shared, own, step, left);
        load_rows<D>(shared + kHalfTile<D>, own, step, right);
        multiply_pair(left, right, products[0], products[1], T{});
      }
      // Every ninth product is of a row with itself: of rows r and r + 8 one thread has both.
      const int lane = threadIdx.x % kWarp;
      const int r = lane / 4;
      if (lane % 4 == r / 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int64_t row = task.first + WarpElements::row(i);
          if (row < rows) {
            const auto& strides = args.grad_logsumexp.strides;
            const float outer = static_cast<const float*>(args.grad_logsumexp.data)[
                task.batch * strides[0] + task.head * strides[1] + row * strides[2]];
            const float dot = r % 2 == 0 ? products[i][2 * i] : products[i][2 * i + 1];
            row_values<float>(args.delta, shape, task.batch, task.head)[row] = dot - outer;
          }
        }
      }
    }
  }
}

template <typename T, int D, bool kByQuery>
__device__ void tensor_gradient(const AttentionBackwardArgs& args, const Division& division,
                                int64_t index, T* shared) {
  using Gradient = TensorGradient<T, D, kByQuery>;
  TensorTask& task = Gradient::task_of(shared);
  bool careful = false;
  while (task.begin<kByQuery>(division, args.forward.shape, index)) {
    Gradient gradient(args, shared);
    const bool odd = gradient.add(careful);
    // A key may be infinite that a query does not see: the task once more, carefully.
    if (kByQuery && !careful && any_of_block(odd)) {
      careful = true;
      continue;
    }
    gradient.store();
    return;
  }
}

// All gradients in one launch, those of keys and values first: they have more products. Two blocks a
// multiprocessor.
template <typename T, int D>
__global__ void __launch_bounds__(kTileThreads, 2)
    gradients_tensor(const __grid_constant__ AttentionBackwardArgs args,
                     const __grid_constant__ Division keys,
                     const __grid_constant__ Division queries) {
  if constexpr (kHasTensorCores) {
    FUSEWHEEL_DYNAMIC_SHARED(T, shared);
    int64_t index = blockIdx.x;
    for (; index < keys.tasks; index += gridDim.x) {
      tensor_gradient<T, D, false>(args, keys, index, shared);
    }
    for (index -= keys.tasks; index < queries.tasks; index += gridDim.x) {
      tensor_gradient<T, D, true>(args, queries, index, shared);
    }
  }
}

// Whether it has computed the gradients, but for those of sinks.
template <typename T>
bool launch_gradients_tensor(const char* op, const AttentionBackwardArgs& args,
                             const PackedRows& packed, Stream stream) {
  if constexpr (sizeof(T) != 2) {
    return false;
  } else {
    const auto& forward = args.forward;
    const auto& shape = forward.shape;
    for (const View* view : {&forward.q, &forward.k, &args.grad_q, &args.grad_k}) {
      if (!has_aligned_rows(*view, shape.size)) {
        return false;
      }
    }
    for (const View* view : {&forward.v, &forward.out, &args.grad, &args.grad_v}) {
      if (!has_aligned_rows(*view, shape.value_size)) {
        return false;
      }
    }
    const auto run = [&](auto size) {
      constexpr int D = decltype(size)::value;
      const auto kernel = gradients_tensor<T, D>;
      if (!has_tensor_cores(op, kernel)) {
        return false;
      }
      const Division rows(shape.batch, shape.heads, shape.queries, D, D);
      launch(op, subtract_tensor<T, D>, blocks_for(rows.tasks, 1), kTileThreads,
             2 * kHalfTile<D> * sizeof(T), stream, args, rows);
      const Division keys(shape.batch, shape.kv_heads, shape.keys, D, D, packed.keys);
      const Division queries(shape.batch, shape.heads, shape.queries, D, D, packed.queries);
      launch(op, kernel, blocks_for(keys.tasks + queries.tasks, 1), kTileThreads,
             kTensorGradientBytes<D>, stream, args, keys, queries);
      return true;
    };
    return with_tile_width(shape, run);
  }
}

}  // namespace
}  // namespace fusewheel
