// Gradients of attention: the scores are computed again, from them and the logsumexp the shares
//
// Each gradient has tasks of its own, so that all that is added to one of its elements is added by
// one thread, in one order: that of queries by tiles of queries, those of keys and values by tiles of
// keys.

#include "common/rows.h"
#include "queries.h"
#include "scores.h"
#include "tensor_backward.h"

namespace fusewheel {
namespace {

constexpr int kSinkThreads = 256;

enum class Of { kQueries, kKeys, kValues };

// One function for all three: they differ in whose rows meet whose, and three copies of it would be
// the largest part of the library.
template <typename T, int groups>
__device__ void gradient(const AttentionBackwardArgs& args, const Division& division, Of of,
                         int64_t index, Accumulate<T>* shared) {
  using A = Accumulate<T>;
  const bool by_queries = of == Of::kQueries;
  const auto& forward = args.forward;
  const auto& shape = forward.shape;
  const int64_t group = shape.heads / shape.kv_heads;
  A* weights = shared + 2 * kSlice<A>;
  const Task& task = shared_task(division, shape, index);
  if (!task.exists) {
    return;
  }
  const Sequence& own = task.own;
  const Band band = by_queries ? by_query(own, shape) : by_key(own, shape);
  const int64_t first_head = by_queries ? task.head : task.head * group;
  const int64_t end_head = by_queries ? task.head + 1 : first_head + group;
  const int64_t kv_head = first_head / group;
  const auto of_keys = [&](const View& view, int64_t size) {
    return Head<T>(view, task.batch, kv_head, own.key, own.keys, size);
  };
  const int64_t column = task.part * kResultColumns<A, groups>;
  Result<A, groups> result = {};
  A dots[kOwnRows] = {};  // of the shares and their gradients

  for (int64_t head = first_head; head < end_head; ++head) {
    const auto of_queries = [&](const View& view, int64_t size) {
      return Head<T>(view, task.batch, head, own.query, own.queries, size);
    };
    const Scores<T> scores(forward, task.batch, head);
    const Queries<A> queries(args, task, head);
    const int64_t end = task.wrong ? 0 : band.end(band.last(task.first));
    for (int64_t other = band.begin(task.first) / kTile * kTile; other < end; other += kTile) {
      Tile<A> tile;
      // The gradients of the shares wait where the weights will be: a thread has too few registers for
      // both tiles and the result.
#pragma unroll 1
      for (bool of_shares = of != Of::kValues;; of_shares = false) {
        const int64_t size = of_shares ? shape.value_size : shape.size;
        const Head<T> q = of_queries(of_shares ? args.grad : forward.q, size);
        const Head<T> k = of_keys(of_shares ? forward.v : forward.k, size);
        const Head<T> left = by_queries ? q : k;
        const Head<T> right = by_queries ? k : q;
        multiply_rows(left, task.first, right, other, shared, tile);
        if (!of_shares) {
          break;
        }
        share(tile, weights);
      }
      const TileBand visible = band.tile(task.first, other);
      const int64_t row_stride = by_queries ? scores.query_stride : scores.key_stride;
      const int64_t column_stride = by_queries ? scores.key_stride : scores.query_stride;
      // A product becomes a share, or the gradient of the product.
      const auto weigh = [&](int i, int j, A& element, A& dot) {
        const int64_t row = task.first + own_row(i);
        const int64_t at = other + own_column(j);
        const bool is_visible = visible.span(own_row(i)).holds(own_column(j));
        const Query<A> query = queries[by_queries ? row : at];
        A cap = 0;
        const A score = scores.finish(element, row * row_stride + at * column_stride, is_visible, cap);
        // Of a key that is not seen the value may be infinite.
        const bool seen = score != kNothing<A>;
        element = seen ? exponential(score - query.base) : 0;
        if (of != Of::kValues) {
          const A share_gradient = weights[weight_at<A>(i, j)];
          const A slope = element * (share_gradient - query.delta) * (1 - cap * cap);
          dot += seen ? element * share_gradient : 0;
          element = seen ? slope : 0;
        }
      };
#pragma unroll 1
      for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
        for (int j = 0; j < kOwnColumns; ++j) {
          weigh(i, j, tile[0][j], dots[0]);
        }
        turn(tile);
        turn(dots);
      }
      share(tile, weights);
      const Head<T> right = by_queries      ? of_keys(forward.k, shape.size)
                            : of == Of::kKeys ? of_queries(forward.q, shape.size)
                                              : of_queries(args.grad, shape.value_size);
      add_products(weights, right, other, column, by_queries, shared, result);
    }
  }

  const View& to = by_queries ? args.grad_q : of == Of::kKeys ? args.grad_k : args.grad_v;
  const Head<T> out(to, task.batch, task.head, by_queries ? own.query : own.key, band.rows,
                    of == Of::kValues ? shape.value_size : shape.size);
  const A scale = task.wrong ? static_cast<A>(NAN)
                             : of == Of::kValues ? 1 : static_cast<A>(shape.scale);
  store_result<groups>(out, task.first, column, result,
                       [&](int, A value) { return value * scale; });
  if (by_queries && args.dots != nullptr && task.part == 0) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const A dot = task.wrong ? static_cast<A>(NAN) : warp_reduce<Plus>(dots[i], kAcross);
      const int64_t query = task.first + own_row(i);
      if (own_column(0) == 0 && query < own.queries) {
        row_values<A>(args.dots, shape, task.batch, task.head, own.query)[query] = dot;
      }
    }
  }
}

// The tasks of the three gradients, those with the most products first.
struct Divisions {
  Division keys;
  Division values;
  Division queries;

  int64_t tasks() const { return keys.tasks + values.tasks + queries.tasks; }
};

// All gradients in one launch: they read the same rows, which the second cache holds meanwhile. Two
// blocks a multiprocessor: compilers may count on more, for which there are no registers.
template <typename T, int groups>
__global__ void __launch_bounds__(kTileThreads, 2)
    gradients(const __grid_constant__ AttentionBackwardArgs args,
              const __grid_constant__ Divisions of, int64_t tasks) {
  FUSEWHEEL_DYNAMIC_SHARED(Accumulate<T>, shared);
  for (int64_t index = blockIdx.x; index < tasks; index += gridDim.x) {
    const int64_t value = index - of.keys.tasks;
    const int64_t query = value - of.values.tasks;
    const Of own = value < 0 ? Of::kKeys : query < 0 ? Of::kValues : Of::kQueries;
    const Division& division = value < 0 ? of.keys : query < 0 ? of.values : of.queries;
    gradient<T, groups>(args, division, own, value < 0 ? index : query < 0 ? value : query, shared);
  }
}

// dot(grad, out) - grad_logsumexp. The dot product has the order of `multiply_rows`: with a single
// key, whose value is the result, the gradient of its score is exactly 0.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    subtract(const __grid_constant__ AttentionBackwardArgs args,
             const __grid_constant__ Division division) {
  using A = Accumulate<T>;
  const auto& shape = args.forward.shape;
  FUSEWHEEL_DYNAMIC_SHARED(A, shared);
  for (int64_t index = blockIdx.x; index < division.tasks; index += gridDim.x) {
    const Task task(division, shape, index);
    const Head<T> grad(args.grad, task.batch, task.head, 0, shape.queries, shape.value_size);
    const Head<T> out(args.forward.out, task.batch, task.head, 0, shape.queries,
                            shape.value_size);
    A sum = 0;
    for (int64_t k = 0; k < shape.value_size; k += kDepth<A>) {
      __syncthreads();  // what was there has been read
      load_part<kTile, kDepth<A>, kSliceStride<A>>(grad, task.first, k, false, shared);
      load_part<kTile, kDepth<A>, kSliceStride<A>>(out, task.first, k, false, shared + kSlice<A>);
      __syncthreads();
      for (int d = 0; threadIdx.x < kTile && d < kDepth<A>; d += kLanes<A>) {
        A left[kLanes<A>];
        A right[kLanes<A>];
        load(shared + threadIdx.x * kSliceStride<A> + d, left);
        load(shared + kSlice<A> + threadIdx.x * kSliceStride<A> + d, right);
#pragma unroll
        for (int l = 0; l < kLanes<A>; ++l) {
          sum = multiply_add(left[l], right[l], sum);
        }
      }
    }
    const int64_t row = task.first + threadIdx.x;
    if (threadIdx.x < kTile && row < shape.queries) {
      const auto& strides = args.grad_logsumexp.strides;
      const A outer = static_cast<const A*>(args.grad_logsumexp.data)[
          task.batch * strides[0] + task.head * strides[1] + row * strides[2]];
      row_values<A>(args.delta, shape, task.batch, task.head)[row] = sum - outer;
    }
  }
}

// -sum(exp(sink - logsumexp) * (dots - grad_logsumexp)) over all queries of a block's head, V of them a
// thread. The result that is given is rounded, and in a sum over all queries its last bits would count.
template <typename A, int V>
__global__ void __launch_bounds__(kSinkThreads)
    sink_gradient(const __grid_constant__ AttentionBackwardArgs args) {
  const auto& shape = args.forward.shape;
  const auto& strides = args.grad_logsumexp.strides;
  const auto* outer = static_cast<const A*>(args.grad_logsumexp.data);
  for (int64_t head = blockIdx.x; head < shape.heads; head += gridDim.x) {
    const double sink = load_one<A>(args.forward.sinks.data, shape.dtype, head);
    double total = 0;
#pragma unroll 1
    for (int64_t i = static_cast<int64_t>(threadIdx.x) * V; i < shape.batch * shape.queries;
         i += kSinkThreads * V) {
      const int64_t batch = i / shape.queries;
      const int64_t query = i % shape.queries;
      A bases[V];
      A dots[V];
      A outers[V];
      load(row_values<A>(args.forward.logsumexp, shape, batch, head, query), bases);
      load(row_values<A>(args.dots, shape, batch, head, query), dots);
      load(outer + batch * strides[0] + head * strides[1] + query * strides[2], outers);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const double base = bases[k] == kNothing<A> ? 0 : bases[k];
        total -= exponential(sink - base) * (static_cast<double>(dots[k]) - outers[k]);
      }
    }
    total = row_sum(total);
    if (threadIdx.x == 0) {
      store_one(static_cast<A>(total), args.grad_sinks, shape.dtype, head);
    }
  }
}

template <typename A>
void launch_sink_gradient(const char* op, const AttentionBackwardArgs& args, Stream stream) {
  const auto& shape = args.forward.shape;
  const auto& outer = args.grad_logsumexp;
  const bool vectors = has_vectors(args.forward.logsumexp, shape.queries, kLanes<A>) &&
                       has_vectors(args.dots, shape.queries, kLanes<A>) &&
                       has_vectors(outer.data, outer.strides[0], kLanes<A>) &&
                       outer.strides[1] % kLanes<A> == 0 && outer.strides[2] == 1;
  for_width<A>(vectors, [&](auto lanes) {
    launch(op, sink_gradient<A, decltype(lanes)::value>, blocks_for(shape.heads, 1), kSinkThreads,
           0, stream, args);
  });
}

template <typename T>
void launch_gradients_of(const char* op, const AttentionBackwardArgs& args,
                         const PackedRows& packed, Stream stream) {
  using A = Accumulate<T>;
  const auto& shape = args.forward.shape;
  const Division rows(shape.batch, shape.heads, shape.queries, 1, 1);
  launch(op, subtract<T>, blocks_for(rows.tasks, 1), kTileThreads, 2 * kSlice<A> * sizeof(A), stream,
         args, rows);
  const int64_t widest = shape.size > shape.value_size ? shape.size : shape.value_size;
  // Tensor cores have most heads of half types.
  for_groups<A, sizeof(T) == 2>(widest, [&](auto groups) {
    constexpr int kGroups = decltype(groups)::value;
    const auto divide = [&](int64_t heads, int64_t rows, int64_t size, const PackedSequences& sequences) {
      return Division(shape.batch, heads, rows, size, kResultColumns<A, kGroups>, sequences);
    };
    const Divisions of{divide(shape.kv_heads, shape.keys, shape.size, packed.keys),
                       divide(shape.kv_heads, shape.keys, shape.value_size, packed.keys),
                       divide(shape.heads, shape.queries, shape.size, packed.queries)};
    launch(op, gradients<T, kGroups>, blocks_for(of.tasks(), 1), kTileThreads, kTileBytes<A>,
           stream, args, of, of.tasks());
  });
}

void launch_gradients(const char* op, const AttentionBackwardArgs& args, const PackedRows& packed,
                      Stream stream) {
  const auto& shape = args.forward.shape;
  for_dtype(shape.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (!launch_gradients_tensor<T>(op, args, packed, stream)) {
      launch_gradients_of<T>(op, args, packed, stream);
    }
  });
  if (args.grad_sinks != nullptr) {
    const bool wide = shape.dtype == Dtype::kFloat64;
    wide ? launch_sink_gradient<double>(op, args, stream)
         : launch_sink_gradient<float>(op, args, stream);
  }
}

}  // namespace

void attention_backward_launch(const AttentionBackwardArgs& args, Stream stream) {
  launch_gradients("attention_backward", args, {}, stream);
}

void attention_varlen_backward_launch(const AttentionVarlenBackwardArgs& args, Stream stream) {
  constexpr const char* kOp = "attention_varlen_backward";
  const auto packed = launch_packing(kOp, args.packing, args.all.forward.shape, stream);
  launch_gradients(kOp, args.all, packed, stream);
}

}  // namespace fusewheel
