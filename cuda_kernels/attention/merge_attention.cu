// Attention to the keys of two parts, given attention to those of either, row by row

#include <fusewheel/attention/merge_attention_args.h>

#include <cmath>

#include "common/divide.h"
#include "common/rows.h"

namespace fusewheel {
namespace {

// What either part is of the whole.
template <typename A>
struct Shares {
  A own;
  A other;
  A total;  // logsumexp of both
  bool absent;
  bool other_absent;

  __device__ Shares(A logsumexp, A other_logsumexp)
      : absent(logsumexp == -static_cast<A>(INFINITY)),
        other_absent(other_logsumexp == -static_cast<A>(INFINITY)) {
    if (absent && other_absent) {
      own = other = 0;
      total = logsumexp;
      return;
    }
    const bool first = logsumexp > other_logsumexp;
    const A peak = first ? logsumexp : other_logsumexp;
    const A rest = first ? other_logsumexp : logsumexp;
    // peak - peak: NaN where it is infinite.
    const A ratio = exponential(rest - peak) + (peak - peak);
    const A larger = 1 / (1 + ratio);
    own = first ? larger : ratio * larger;
    other = first ? ratio * larger : larger;
    total = peak + log_one_plus(ratio);
  }
};

// Where the rows of all operands are.
template <int operands>
struct MergeMemory {
  MergeArgs<operands> args;
  Divisor sizes[kMergedDims];

  explicit MergeMemory(const MergeArgs<operands>& args) : args(args) {
    for (int d = 0; d < args.rows.dims; ++d) {
      sizes[d] = Divisor(args.rows.sizes[d]);
    }
  }

  // Where each operand has a row.
  __device__ void locate(int64_t row, int64_t (&at)[operands]) const {
    uint64_t rest = static_cast<uint64_t>(row);
#pragma unroll
    for (int k = 0; k < operands; ++k) {
      at[k] = 0;
    }
    // Unrolled, it would be a third of the code.
#pragma unroll 1
    for (int d = 0; d < args.rows.dims; ++d) {
      const uint64_t outer = sizes[d].divide(rest);
      const int64_t position = static_cast<int64_t>(rest - outer * sizes[d].divisor);
      rest = outer;
#pragma unroll
      for (int k = 0; k < operands; ++k) {
        at[k] += position * args.rows.strides[k][d];
      }
    }
  }

  template <typename T>
  __device__ T* rows(int k, const int64_t (&at)[operands]) const {
    return static_cast<T*>(args.data[k]) + at[k];
  }

  // Every vector of every row is whole and aligned. Rows and single values take turns.
  bool vectors(int64_t lanes) const {
    bool whole = args.size % lanes == 0;
    for (int k = kOut; k < operands; k += kOther - kOut) {
      for (int d = 0; d < args.rows.dims; ++d) {
        whole = whole && has_vectors(args.data[k], args.rows.strides[k][d], lanes);
      }
    }
    return whole;
  }
};

// A row of threads has a row.
template <typename T, int V>
__global__ void __launch_bounds__(kMaxRowThreads)
    merge_attention_rows(const __grid_constant__ MergeMemory<kMergeOperands> memory) {
  using A = Accumulate<T>;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
       row < memory.args.rows.numel; row += static_cast<int64_t>(gridDim.x) * blockDim.y) {
    int64_t at[kMergeOperands];
    memory.locate(row, at);
    const Shares<A> shares(*memory.template rows<A>(kLogsumexp, at),
                           *memory.template rows<A>(kOtherLogsumexp, at));
    if (threadIdx.x == 0) {
      *memory.template rows<A>(kMergedLogsumexp, at) = shares.total;
    }
    for (int64_t i = threadIdx.x * V; i < memory.args.size; i += blockDim.x * V) {
      A values[V] = {};
      A others[V] = {};
      if (!shares.absent) {
        load(memory.template rows<T>(kOut, at) + i, values);
      }
      if (!shares.other_absent) {
        load(memory.template rows<T>(kOther, at) + i, others);
      }
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const A own = values[k] * shares.own;
        values[k] = shares.absent         ? others[k] * shares.other
                    : shares.other_absent ? own
                                          : multiply_add(others[k], shares.other, own);
      }
      store(memory.template rows<T>(kMerged, at) + i, values);
    }
  }
}

// With spread = own * other * sum(grad * (out - other)) and the gradient g of the merged logsumexp:
// grad_out = own * grad, grad_logsumexp = own * g + spread; for the other part the sign of spread
// is the other one.
template <typename T, int V>
__global__ void __launch_bounds__(kMaxRowThreads)
    merge_attention_backward_rows(
        const __grid_constant__ MergeMemory<kMergeBackwardOperands> memory) {
  using A = Accumulate<T>;
  const int64_t count = memory.args.rows.numel;
  // Every thread takes part in the sums, also of rows beyond the last: those have size 0.
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * blockDim.y; block < count;
       block += static_cast<int64_t>(gridDim.x) * blockDim.y) {
    const int64_t row = block + threadIdx.y;
    const int64_t size = row < count ? memory.args.size : 0;
    int64_t at[kMergeBackwardOperands];
    memory.locate(row < count ? row : 0, at);
    const Shares<A> shares(*memory.template rows<A>(kLogsumexp, at),
                           *memory.template rows<A>(kOtherLogsumexp, at));
    const bool both = !shares.absent && !shares.other_absent;
    double dot = 0;  // what is left of a gradient may be small beside its summands
    for (int64_t i = threadIdx.x * V; i < size; i += blockDim.x * V) {
      A grad[V];
      A values[V] = {};
      A others[V] = {};
      load(memory.template rows<T>(kMerged, at) + i, grad);
      if (both) {
        load(memory.template rows<T>(kOut, at) + i, values);
        load(memory.template rows<T>(kOther, at) + i, others);
      }
#pragma unroll
      for (int k = 0; k < V; ++k) {
        dot += both ? static_cast<double>(grad[k]) * (values[k] - others[k]) : 0;
        values[k] = shares.absent ? 0 : grad[k] * shares.own;
        others[k] = shares.other_absent ? 0 : grad[k] * shares.other;
      }
      store(memory.template rows<T>(kGradOut, at) + i, values);
      store(memory.template rows<T>(kGradOther, at) + i, others);
    }
    dot = row_sum(dot);
    if (threadIdx.x == 0 && row < count) {
      const double own = shares.own;
      const double other = shares.other;
      const double spread = both ? own * other * dot : 0;
      const double g = *memory.template rows<A>(kMergedLogsumexp, at);
      *memory.template rows<A>(kGradLogsumexp, at) =
          static_cast<A>(shares.absent ? 0 : g * own + spread);
      *memory.template rows<A>(kGradOtherLogsumexp, at) =
          static_cast<A>(shares.other_absent ? 0 : g * other - spread);
    }
  }
}

template <typename Run, int operands>
void dispatch(const MergeArgs<operands>& args, const Run& run) {
  const MergeMemory<operands> memory(args);
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_width<T>(memory.vectors(kLanes<T>), [&](auto lanes) {
      const dim3 block = row_block(args.size / decltype(lanes)::value, 128);
      run(zero, lanes, memory, blocks_for(args.rows.numel, block.y), block);
    });
  });
}

}  // namespace

void merge_attention_launch(const MergeAttentionArgs& args, Stream stream) {
  dispatch(args, [&](auto zero, auto lanes, const auto& memory, unsigned blocks, dim3 block) {
    launch("merge_attention", merge_attention_rows<decltype(zero), decltype(lanes)::value>, blocks,
           block, 0, stream, memory);
  });
}

void merge_attention_backward_launch(const MergeAttentionBackwardArgs& args, Stream stream) {
  dispatch(args, [&](auto zero, auto lanes, const auto& memory, unsigned blocks, dim3 block) {
    const auto kernel = merge_attention_backward_rows<decltype(zero), decltype(lanes)::value>;
    launch("merge_attention_backward", kernel, blocks, block, 0, stream, memory);
  });
}

}  // namespace fusewheel
