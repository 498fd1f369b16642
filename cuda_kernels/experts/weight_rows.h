// Rows of the weights of groups, and their products with rows of x, for kernels that have few rows.
#pragma once

#include <fusewheel/experts/groups.h>

#include <iterator>

#include "common/reduce.h"
#include "linear/block_stage.h"
#include "row_groups.h"

namespace fusewheel {
namespace {

// Rows of x: V neighbours at a time.
template <typename X>
struct InputRows {
  const X* data;
  int64_t stride;
  bool aligned;  // every row

  InputRows(const void* data, int64_t stride)
      : data(static_cast<const X*>(data)),
        stride(stride),
        aligned(is_aligned(data) && stride % kLanes<X> == 0) {}

  template <int V>
  __device__ void read(int64_t row, int64_t at, int64_t columns, Accumulate<X> (&to)[V]) const {
    const X* from = data + row * stride + at;
    if (V == 1 || (aligned && columns - at >= V)) {
      load(from, to);
    } else {
      load(from, to, columns - at);
    }
  }
};

// Where the rows of each group's weight lie, as they are stored.
struct StoredRows {
  const char* data;
  int64_t step;
  int64_t stride;
  int64_t columns;

  explicit StoredRows(const GroupWeights& weights)
      : data(static_cast<const char*>(weights.first.data)),
        step(weights.step),
        stride(weights.first.stride),
        columns(weights.first.columns) {}
};

// A weight in the dtype of x, whose rows lie dense: 128 bits at a time.
template <typename T>
struct DenseRows : StoredRows {
  using Number = Accumulate<T>;
  static constexpr int kPart = kLanes<T>;
  static constexpr int kAtOnce = 2;  // parts of a lane, whose loads are under way together
  bool aligned;

  explicit DenseRows(const GroupWeights& weights)
      : StoredRows(weights),
        aligned(is_aligned(data) && step % kVectorBytes == 0 && stride % kLanes<T> == 0) {}

  __device__ void read(int64_t group, int64_t row, int64_t part, Number (&to)[kPart]) const {
    const T* from = reinterpret_cast<const T*>(data + group * step) + row * stride + part * kPart;
    if (aligned && columns - part * kPart >= kPart) {
      load(from, to);
    } else {
      load(from, to, columns - part * kPart);
    }
  }
};

// A floating weight as it comes: of another dtype, or transposed.
template <typename A>
struct AnyRows {
  using Number = A;
  static constexpr int kPart = 1;
  static constexpr int kAtOnce = 1;
  const char* data;
  int64_t step;
  Dtype dtype;
  int64_t row_step;
  int64_t column_step;
  int64_t columns;

  explicit AnyRows(const GroupWeights& weights)
      : data(static_cast<const char*>(weights.first.data)),
        step(weights.step),
        dtype(weights.first.dtype) {
    const bool along = !weights.transposed;
    row_step = along ? weights.first.stride : 1;
    column_step = along ? 1 : weights.first.stride;
    columns = along ? weights.first.columns : weights.first.rows;
  }

  __device__ void read(int64_t group, int64_t row, int64_t part, Number (&to)[kPart]) const {
    to[0] = load_one<A>(data + group * step, dtype, row * row_step + part * column_step);
  }
};

// A weight in stored blocks.
template <typename Decoder>
struct BlockRows : StoredRows {
  int64_t rows;

  explicit BlockRows(const GroupWeights& weights)
      : StoredRows(weights), rows(weights.first.rows) {}

  __device__ const uint8_t* row(int64_t group, int64_t own) const {
    return reinterpret_cast<const uint8_t*>(data + group * step + own * stride);
  }

  // Of a group.
  __device__ StoredBytes bytes(int64_t group) const {
    return {row(group, 0), row(group, rows - 1) + columns / Decoder::kWeights * Decoder::kBytes};
  }
};

// Weights that meet float64 are read one number at a time, whatever they are: nobody waits for them, and
// kernels of their own would only make the library larger.
template <typename T>
constexpr bool kAsAny = std::is_same_v<T, double>;

constexpr int kBlockKinds = std::size(kBlockFormats);

// A weight in stored blocks of any kind, for float64.
struct AnyBlockRows : StoredRows {
  using Number = float;
  static constexpr int kPart = 1;
  static constexpr int kAtOnce = 1;
  BlockKind kind;

  explicit AnyBlockRows(const GroupWeights& weights)
      : StoredRows(weights), kind(weights.first.blocks.kind) {}

  __device__ void read(int64_t group, int64_t row, int64_t i, Number (&to)[kPart]) const {
    decode(reinterpret_cast<const uint8_t*>(data + group * step + row * stride), i, to);
  }

 private:
  // Looks for the kind from entry `entry` of the table on.
  template <int entry = 0>
  __device__ void decode(const uint8_t* from, int64_t i, Number (&to)[kPart]) const {
    constexpr BlockFormat format = kBlockFormats[entry];
    if (kind == format.kind) {
      const int64_t block = i / format.weights;
      const int part = static_cast<int>(i % format.weights) / kBlockPart;
      BlockDecoder<format.kind>::template decode_some<kPart>(
          from + block * format.bytes, part, static_cast<int>(i % kBlockPart), to);
    } else if constexpr (entry + 1 < kBlockKinds) {
      decode<entry + 1>(from, i, to);
    }
  }
};

// Calls body(rows) with the rows of a floating weight as they are read for an x of type T. The order of
// a sum follows from this choice and from the sizes, not from addresses.
template <typename T, typename Body>
void for_floating_rows(const GroupWeights& weights, Dtype dtype, const Body& body) {
  if constexpr (!kAsAny<T>) {
    if (weights.first.dtype == dtype && !weights.transposed) {
      return body(DenseRows<T>(weights));
    }
  }
  body(AnyRows<Accumulate<T>>(weights));
}

// sums[c][r] = row own[c] of the group's weight * row places[r] of x, for the first `rows` of R: what
// this lane has of it. The same numbers for any C, R and `rows`.
template <int C, int R, typename X, typename Weight>
__device__ void lane_dots(const Weight& weight, int64_t group, const int64_t (&own)[C],
                          const InputRows<X>& x, const int64_t (&places)[R], int rows,
                          Accumulate<X> (&sums)[C][R]) {
  using A = Accumulate<X>;
  constexpr int V = Weight::kPart;
  constexpr int P = V < kLanes<X> ? V : kLanes<X>;
  const int64_t parts = (weight.columns + V - 1) / V;
#pragma unroll 1
  for (int64_t begin = threadIdx.x; begin < parts; begin += kWarp * Weight::kAtOnce) {
    typename Weight::Number w[Weight::kAtOnce][C][V];
#pragma unroll
    for (int i = 0; i < Weight::kAtOnce; ++i) {
      if (begin + i * kWarp < parts) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
          weight.read(group, own[c], begin + i * kWarp, w[i][c]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < Weight::kAtOnce; ++i) {
      const int64_t part = begin + i * kWarp;
      if (part >= parts) {
        break;
      }
#pragma unroll
      for (int piece = 0; piece < V; piece += P) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          if (r < rows) {
            A values[P];
            x.read(places[r], part * V + piece, weight.columns, values);
#pragma unroll
            for (int c = 0; c < C; ++c) {
              // In chains that run at once and round less than a long one.
              A chains[4] = {};
#pragma unroll
              for (int j = 0; j < P; ++j) {
                const A own_w = static_cast<A>(w[i][c][piece + j]);
                chains[j % 4] = multiply_add(values[j], own_w, chains[j % 4]);
              }
              sums[c][r] += (chains[0] + chains[1]) + (chains[2] + chains[3]);
            }
          }
        }
      }
    }
  }
}

// The same for a weight in blocks, which come through shared memory.
template <int C, int R, typename X, typename Decoder>
__device__ void lane_dots(const BlockRows<Decoder>& weight, int64_t group, const int64_t (&own)[C],
                          const InputRows<X>& x, const int64_t (&places)[R], int rows,
                          Accumulate<X> (&sums)[C][R]) {
  using A = Accumulate<X>;
  constexpr int N = kLanes<X>;
  __shared__ BlockStage<Decoder> stages[kProductWarps];
  const StoredBytes stored = weight.bytes(group);
  const int64_t parts = weight.columns / kBlockPart;
  // One row after another by the same instructions: decoding takes many of them.
#pragma unroll 1
  for (int c = 0; c < C; ++c) {
    const uint8_t* row = weight.row(group, one_of(own, c));
    A own_sums[R] = {};
    for (int64_t begin = 0; begin < parts; begin += BlockStage<Decoder>::kRun) {
      const auto run = stages[threadIdx.y].fill(stored, row, begin, parts - begin);
      run.template for_own<N>([&](int i, const float(&w)[N]) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          if (r < rows) {
            A values[N];
            load(x.data + places[r] * x.stride + begin * kBlockPart + i, values);
            A sum = 0;
#pragma unroll
            for (int j = 0; j < N; ++j) {
              sum = multiply_add(values[j], static_cast<A>(w[j]), sum);
            }
            own_sums[r] += sum;
          }
        }
      });
    }
#pragma unroll
    for (int d = 0; d < C; ++d) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        sums[d][r] = d == c ? own_sums[r] : sums[d][r];
      }
    }
  }
}

// The product of two rows; every lane gets it.
template <typename X, typename Weight>
__device__ Accumulate<X> warp_dot(const Weight& weight, int64_t group, int64_t own,
                                  const InputRows<X>& x, int64_t place) {
  Accumulate<X> sums[1][1] = {};
  lane_dots<1, 1>(weight, group, {own}, x, {place}, 1, sums);
  return warp_sum(sums[0][0]);
}

}  // namespace
}  // namespace fusewheel
