// Attention: the result of a query grows with each tile of keys

#include "packing.h"
#include "softmax.h"
#include "tensor_attention.h"

namespace fusewheel {
namespace {

// Marks the keys whose value has an element that is not finite. A warp has a key.
template <typename A>
__global__ void mark_values(const __grid_constant__ AttentionArgs args, int64_t count) {
  const auto& shape = args.shape;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < count;
       row += warps) {
    const int64_t key = row % shape.keys;
    const int64_t head = row / shape.keys % shape.kv_heads;
    const int64_t batch = row / shape.keys / shape.kv_heads;
    const auto& strides = args.v.strides;
    const int64_t first = batch * strides[0] + head * strides[1] + key * strides[2];
    A odd = 0;
    for (int64_t i = threadIdx.x; i < shape.value_size; i += kWarp) {
      odd += load_one<A>(args.v.data, shape.dtype, first + i * strides[3]) * 0;
    }
    odd = warp_sum(odd);
    if (threadIdx.x == 0) {
      static_cast<bool*>(args.scratch)[row] = !(odd == 0);
    }
  }
}

// Two blocks a multiprocessor: compilers may count on more, for which there are no registers.
template <typename T, int groups>
__global__ void __launch_bounds__(kTileThreads, 2)
    attend(const __grid_constant__ AttentionArgs args, const __grid_constant__ Division division) {
  using A = Accumulate<T>;
  FUSEWHEEL_DYNAMIC_SHARED(A, shared);
  A* weights = shared + 2 * kSlice<A>;
  for (int64_t index = blockIdx.x; index < division.tasks; index += gridDim.x) {
    const Task& task = shared_task(division, args.shape, index);
    if (!task.exists) {
      continue;
    }
    const Band band = by_query(task.own, args.shape);
    const Operands<T> given(args, task);
    const int64_t column = task.part * kResultColumns<A, groups>;
    Softmax<T, OwnElements> softmax(given.sink);
    Result<A, groups> result = {};

    const int64_t end = task.wrong ? 0 : band.end(band.last(task.first));
    for (int64_t key = band.begin(task.first) / kTile * kTile; key < end; key += kTile) {
      Tile<A> tile;
      multiply_rows(given.q, task.first, given.k, key, shared, tile);
      unsigned marked = 0;
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) {
        const int64_t at = key + own_column(j);
        marked |= static_cast<unsigned>(at < task.own.keys && given.marks[at]) << j;
      }
      A shrink[kOwnRows];
      softmax.add(given.scores, band, task.first, key, marked, tile, shrink);
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
        for (int g = 0; g < groups; ++g) {
#pragma unroll
          for (int m = 0; m < kLanes<A>; ++m) {
            result[i][g][m] *= shrink[i];
          }
        }
      }
      share(tile, weights);
      add_products(weights, given.v, key, column, true, shared, result);
    }

    A sums[kOwnRows];
    softmax.finish(task, task.part == 0 ? given.logsumexp : nullptr, sums);
    store_result<groups>(given.out, task.first, column, result,
                         [&](int i, A value) { return value / sums[i]; });
  }
}

void launch_attend(const char* op, const AttentionArgs& args, const PackedRows& packed,
                   Stream stream) {
  const auto& shape = args.shape;
  for_dtype(shape.dtype, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulate<T>;
    if (launch_attend_tensor<T>(op, args, packed, stream)) {
      return;
    }
    constexpr int kWarps = 8;
    const int64_t values = attention_scratch_bytes(shape);
    launch(op, mark_values<A>, blocks_for(values, kWarps), dim3(kWarp, kWarps), 0, stream, args,
           values);
    for_groups<A, sizeof(T) == 2>(shape.value_size, [&](auto groups) {
      constexpr int kColumns = kResultColumns<A, decltype(groups)::value>;
      const Division division(shape.batch, shape.heads, shape.queries, shape.value_size, kColumns,
                              packed.queries);
      launch(op, attend<T, decltype(groups)::value>, blocks_for(division.tasks, 1), kTileThreads,
             kTileBytes<A>, stream, args, division);
    });
  });
}

}  // namespace

int64_t attention_scratch_bytes(const AttentionShape& shape) {
  return shape.batch * shape.kv_heads * shape.keys;
}

void attention_launch(const AttentionArgs& args, Stream stream) {
  launch_attend("attention", args, {}, stream);
}

void attention_varlen_launch(const AttentionVarlenArgs& args, Stream stream) {
  const auto packed = launch_packing("attention_varlen", args.packing, args.all.shape, stream);
  launch_attend("attention_varlen", args.all, packed, stream);
}

}  // namespace fusewheel
