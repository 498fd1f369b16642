// What forward and backward share: a block of threads has a tile of scores, kTile x kTile, and adds
// its products with other rows to a tile of the result.
//
// Dao et al., "FlashAttention" (2022): no more than a tile of the scores exists at any time.
#pragma once

#include <fusewheel/attention/attention_args.h>

#include <cmath>

#include "common/reduce.h"
#include "common/vector.h"

namespace fusewheel {
namespace {

constexpr int kTile = 64;
constexpr int kTileThreads = 128;
// So many threads in a row share rows of the tile. Each has every kAcross-th column.
constexpr int kAcross = 16;
constexpr int kDown = kTileThreads / kAcross;
constexpr int kOwnRows = kTile / kDown;
constexpr int kOwnColumns = kTile / kAcross;

__device__ inline int own_row(int i) { return static_cast<int>(threadIdx.x) / kAcross + kDown * i; }
__device__ inline int own_column(int j) {
  return static_cast<int>(threadIdx.x) % kAcross + kAcross * j;
}

// Elements of rows that are in shared memory at a time.
template <typename A>
constexpr int kDepth = 128 / static_cast<int>(sizeof(A));

// Distances between rows in shared memory at which no two threads of an access meet in a bank.
template <typename A>
constexpr int kSliceStride = kDepth<A> + kLanes<A>;
template <typename A>
constexpr int kWeightStride = kTile + 4 * kLanes<A>;

template <typename A>
constexpr int kSlice = kTile * kSliceStride<A>;
template <typename A>
constexpr size_t kTileBytes = sizeof(A) * (2 * kSlice<A> + kTile * kWeightStride<A>);

// Columns of the result that a block has: `groups` vectors of each thread.
template <typename A, int groups>
constexpr int kResultColumns = kAcross * kLanes<A> * groups;

// Where a thread's vector of a group begins, in the columns of its block as they are in shared memory.
template <typename A>
__device__ int shared_column(int group) {
  return (own_column(0) + kAcross * group) * kLanes<A>;
}

// Whether a thread's two vectors of the result are neighbours, which together are one of the tensor's. In
// shared memory the first halves of all such vectors come before the second halves: neighbouring
// threads read, and write, neighbouring bytes.
template <typename T, int groups>
constexpr bool kPairs = groups == 2 && kLanes<T> == 2 * kLanes<Accumulate<T>>;

// Where a thread's vector of a group begins in the tensor, in the columns of its block.
template <typename T, int groups>
__device__ int result_column(int group) {
  constexpr int V = kLanes<Accumulate<T>>;
  return kPairs<T, groups> ? (own_column(0) * 2 + group) * V
                           : shared_column<Accumulate<T>>(group);
}

template <typename A>
constexpr A kNothing = -static_cast<A>(INFINITY);

template <typename A>
using Tile = A[kOwnRows][kOwnColumns];
template <typename A, int groups>
using Result = A[kOwnRows][groups][kLanes<A>];

// One head of a tensor: rows of `size` elements.
template <typename T>
struct Head {
  T* data;
  int64_t row;  // strides
  int64_t element;
  int64_t rows;
  int64_t size;
  bool vectors;  // every vector of a row is aligned

  // `first` of the tensor's rows is the first of these.
  __device__ Head(const View& view, int64_t batch, int64_t head, int64_t first, int64_t rows,
                  int64_t size)
      : data(static_cast<T*>(view.data) + batch * view.strides[0] + head * view.strides[1] +
             first * view.strides[2]),
        row(view.strides[2]),
        element(view.strides[3]),
        rows(rows),
        size(size),
        vectors(element == 1 && row % kLanes<T> == 0 &&
                reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0) {}
};

// A part of a head to shared memory; zeros beyond its ends and, with `clean`, instead of what is not
// finite. With `halves`, the first halves of a row's vectors come first.
template <int rows, int columns, int stride, bool halves = false, typename T>
__device__ void load_part(const Head<T>& head, int64_t first, int64_t column, bool clean,
                          Accumulate<T>* to) {
  using A = Accumulate<T>;
  constexpr int V = kLanes<T>;
  static_assert(columns % V == 0 && rows * columns / V % kTileThreads == 0, "whole vectors");
  for (int i = threadIdx.x; i < rows * columns / V; i += kTileThreads) {
    const int own = i / (columns / V);
    const int at = i % (columns / V) * V;
    const int64_t live = first + own < head.rows ? head.size - column - at : 0;
    const T* from = head.data + (first + own) * head.row + (column + at) * head.element;
    A values[V] = {};
    if (head.vectors && live >= V) {
      load(from, values);
    } else {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        if (k < live) {
          values[k] = widen(from[k * head.element]);
        }
      }
    }
    if (clean) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        values[k] = values[k] * 0 == 0 ? values[k] : A{};
      }
    }
    if constexpr (halves) {
      A front[V / 2];
      A back[V / 2];
#pragma unroll
      for (int k = 0; k < V / 2; ++k) {
        front[k] = values[k];
        back[k] = values[V / 2 + k];
      }
      store(to + own * stride + at / 2, front);
      store(to + own * stride + columns / 2 + at / 2, back);
    } else {
      store(to + own * stride + at, values);
    }
  }
}

// The products of rows [first, first + kTile) of `a` with rows [other, other + kTile) of `b`. Each is
// summed from the first element to the last, as `delta` is.
template <typename T>
__device__ void multiply_rows(const Head<T>& a, int64_t first, const Head<T>& b, int64_t other,
                              Accumulate<T>* shared, Tile<Accumulate<T>>& products) {
  using A = Accumulate<T>;
  A* left = shared;
  A* right = shared + kSlice<A>;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      products[i][j] = 0;
    }
  }
  for (int64_t k = 0; k < a.size; k += kDepth<A>) {
    __syncthreads();  // what was there has been read
    load_part<kTile, kDepth<A>, kSliceStride<A>>(a, first, k, false, left);
    load_part<kTile, kDepth<A>, kSliceStride<A>>(b, other, k, false, right);
    __syncthreads();
    const int depth = a.size - k < kDepth<A> ? static_cast<int>(a.size - k) : kDepth<A>;
    // Two steps at a time would need more registers than a thread has.
#pragma unroll 1
    for (int d = 0; d < depth; d += kLanes<A>) {
      A columns[kOwnColumns][kLanes<A>];
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) {
        load(right + own_column(j) * kSliceStride<A> + d, columns[j]);
      }
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        A row[kLanes<A>];
        load(left + own_row(i) * kSliceStride<A> + d, row);
#pragma unroll
        for (int j = 0; j < kOwnColumns; ++j) {
#pragma unroll
          for (int l = 0; l < kLanes<A>; ++l) {
            products[i][j] = multiply_add(row[l], columns[j][l], products[i][j]);
          }
        }
      }
    }
  }
}

// Where the shared weights have an element of a thread's tile.
template <typename A>
__device__ int weight_at(int i, int j) {
  return own_row(i) * kWeightStride<A> + own_column(j);
}

// Makes a tile known to the whole block.
template <typename A>
__device__ void share(const Tile<A>& tile, A* weights) {
  __syncthreads();  // those of the tile before have been read
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      weights[weight_at<A>(i, j)] = tile[i][j];
    }
  }
}

// Adds the products of shared weights with columns of `b`, whose rows begin at `other`.
template <int groups, typename T>
__device__ void add_products(const Accumulate<T>* weights, const Head<T>& b, int64_t other,
                             int64_t column, bool clean, Accumulate<T>* shared,
                             Result<Accumulate<T>, groups>& result) {
  using A = Accumulate<T>;
  constexpr int kColumns = kResultColumns<A, groups>;
  static_assert(kDepth<A> * kColumns <= 2 * kSlice<A>, "a slice fits");
  for (int k = 0; k < kTile && other + k < b.rows; k += kDepth<A>) {
    __syncthreads();  // what was there has been read
    load_part<kDepth<A>, kColumns, kColumns, kPairs<T, groups>>(b, other + k, column, clean, shared);
    __syncthreads();
#pragma unroll 2
    for (int d = 0; d < kDepth<A>; d += kLanes<A>) {
      A values[kLanes<A>][groups][kLanes<A>];
#pragma unroll
      for (int l = 0; l < kLanes<A>; ++l) {
#pragma unroll
        for (int g = 0; g < groups; ++g) {
          load(shared + (d + l) * kColumns + shared_column<A>(g), values[l][g]);
        }
      }
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        A row[kLanes<A>];
        load(weights + own_row(i) * kWeightStride<A> + k + d, row);
#pragma unroll
        for (int g = 0; g < groups; ++g) {
#pragma unroll
          for (int m = 0; m < kLanes<A>; ++m) {
            // A few products first: each addition to a long sum errs by the sum's last place.
            A sum = row[0] * values[0][g][m];
#pragma unroll
            for (int l = 1; l < kLanes<A>; ++l) {
              sum = multiply_add(row[l], values[l][g][m], sum);
            }
            result[i][g][m] += sum;
          }
        }
      }
    }
  }
}

// Stores finish(i, value) for the values of a result, which begins at row `first` and at `column`.
template <int groups, typename T, typename Finish>
__device__ void store_result(const Head<T>& to, int64_t first, int64_t column,
                             const Result<Accumulate<T>, groups>& result, const Finish& finish) {
  using A = Accumulate<T>;
  constexpr int kTogether = kPairs<T, groups> ? 2 : 1;
  constexpr int V = kTogether * kLanes<A>;
  // One access, whatever a compiler makes of an array.
  using Vector = std::conditional_t<V * sizeof(T) == sizeof(uint4), uint4, uint64_t>;
  static_assert(sizeof(Vector) == V * sizeof(T), "a vector of results");
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const int64_t row = first + own_row(i);
#pragma unroll
    for (int g = 0; g < groups; g += kTogether) {
      const int64_t at = column + result_column<T, groups>(g);
      const int64_t live = row < to.rows ? to.size - at : 0;
      const bool whole = to.vectors && live >= V;
      T* own = to.data + row * to.row + at * to.element;
      T values[V];
#pragma unroll
      for (int m = 0; m < V; ++m) {
        narrow(finish(i, result[i][g + m / kLanes<A>][m % kLanes<A>]), values[m]);
        if (!whole && m < live) {
          own[m * to.element] = values[m];
        }
      }
      if (whole) {
        FUSEWHEEL_EXPECT_ALIGNED(own, sizeof(Vector));
        Vector bits;
        memcpy(&bits, values, sizeof(bits));
        *reinterpret_cast<Vector*>(own) = bits;
      }
    }
  }
}

}  // namespace
}  // namespace fusewheel
