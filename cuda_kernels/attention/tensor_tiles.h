// Tiles of attention in half precision in shared memory: kTile rows of D elements.
#pragma once

#include "common/half_tile.h"
#include "softmax.h"

namespace fusewheel {
namespace {

// Elements of a row of a head at most.
constexpr int kMostTensorHead = 128;
constexpr int kWarpRows = kTile / (kTileThreads / kWarp);  // of a tile of scores
static_assert(kWarpRows == kMmaRows, "a warp has whole tiles of the tensor cores");

template <int D>
constexpr int kHalfTile = kTile * D;  // elements

// Begins to copy rows of a head from `first` on; what the head does not have is zero.
template <int D, int rows = kTile, typename T>
__device__ void begin_tile(const Head<T>& head, int64_t first, T* tile) {
  const int thread = static_cast<int>(threadIdx.x);
  const int piece = thread % kPieces<D>;
  const int64_t at = piece * kPiece;
#pragma unroll 1  // addresses of all rows would take too many registers
  for (int row = thread / kPieces<D>; row < rows; row += kTileThreads / kPieces<D>) {
    const bool exists = first + row < head.rows && at < head.size;
    const T* from = exists ? head.data + (first + row) * head.row + at : head.data;
    copy_async(piece_of<D>(tile, row, piece), from, exists);
  }
}

// Zeros instead of what is not finite in a row of a tile that is there. Returns whether it had such
// elements.
template <int D, typename T>
__device__ bool clean_row(T* tile, int row) {
  bool odd = false;
#pragma unroll 1  // rare, and between others that need the registers
  for (int piece = 0; piece < kPieces<D>; ++piece) {
    T* own = piece_of<D>(tile, row, piece);
    float values[kPiece];
    load(own, values);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      const bool is_odd = values[i] * 0 != 0;
      odd |= is_odd;
      values[i] = is_odd ? 0 : values[i];
    }
    store(own, values);
  }
  return odd;
}

// Likewise of this thread's row of a tile.
template <int D, int rows = kTile, typename T>
__device__ bool clean_tile(T* tile) {
  const int row = static_cast<int>(threadIdx.x);
  return row < rows && clean_row<D>(tile, row);
}

// Products of a warp's 16 rows with the kTile rows of another tile.
constexpr int kScoreTiles = kTile / kMmaColumns;
using HalfScores = float[kScoreTiles][4];

// Which elements of a tile of scores a thread has.
struct WarpElements {
  static constexpr int kRows = 2;
  static constexpr int kColumns = 2 * kScoreTiles;
  static constexpr int kThreads = 4;  // that share a row

  static __device__ int row(int i) {
    return static_cast<int>(threadIdx.x) / kWarp * kWarpRows +
           static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * i;
  }
  static __device__ int column(int j) {
    return j / 2 * kMmaColumns + static_cast<int>(threadIdx.x) % 4 * 2 + j % 2;
  }
  template <int tiles>
  static __device__ float& at(float (&tile)[tiles][4], int i, int j) {
    return tile[j / 2][2 * i + j % 2];
  }
  // Calls body(row, column, element) for each of them.
  template <int tiles, typename Body>
  static __device__ void for_each(float (&tile)[tiles][4], const Body& body) {
#pragma unroll 1
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        body(row(i / 2), column(2 * n + i % 2), tile[0][i]);
      }
      turn(tile);
    }
  }
};

// The left factors that 16 columns of a tile of scores are, rounded to the half type.
template <typename T, int tiles>
__device__ void as_left(const float (&tile)[tiles][4], int step, uint32_t (&to)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto& from = tile[2 * step + i / 2];
    to[i] = pair_of(from[i % 2 * 2], from[i % 2 * 2 + 1], T{});
  }
}

// Adds the products of 16 elements of a warp's rows, those of this step, and of the rows of a tile.
template <int D, int tiles, typename T>
__device__ void multiply_step(const uint32_t (&left)[4], const T* rows, int step,
                              float (&products)[tiles][4]) {
#pragma unroll
  for (int n = 0; n < tiles; n += 2) {
    uint32_t right[4];
    load_rows<D>(rows, n * kMmaColumns, step, right);
    multiply_pair(left, right, products[n], products[n + 1], T{});
  }
}

// Takes from the weights what `as_left` has made of them: what its rounding has left out remains.
template <typename T, int tiles>
__device__ void take_left(float (&tile)[tiles][4], int step, const uint32_t (&left)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    T both[2];
    memcpy(both, &left[i], sizeof(both));
    auto& from = tile[2 * step + i / 2];
    from[i % 2 * 2] -= widen(both[0]);
    from[i % 2 * 2 + 1] -= widen(both[1]);
  }
}

// Adds the products of weights and the columns of a tile. The weights are rounded to the half type; with
// `twice`, so is what that leaves out, and multiplied too. (Then nothing is left of the weights.)
template <int D, bool twice = false, int tiles, typename T>
__device__ void add_columns(float (&weights)[tiles][4], const T* rows, float (&result)[D / 8][4]) {
#pragma unroll
  for (int step = 0; step < tiles * kMmaColumns / kMmaInner; ++step) {
#pragma unroll
    for (int part = 0; part < (twice ? 2 : 1); ++part) {
      uint32_t left[4];
      as_left<T>(weights, step, left);
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) {
        uint32_t right[4];
        load_columns<D>(rows, step * kMmaInner, n * kMmaColumns, right);
        multiply_pair(left, right, result[n], result[n + 1], T{});
      }
      if constexpr (twice) {
        take_left<T>(weights, step, left);
      }
    }
  }
}

// Each row of a result times a number of its own.
template <int tiles>
__device__ void multiply_rows(float (&result)[tiles][4], const float (&factors)[WarpElements::kRows]) {
#pragma unroll
  for (int n = 0; n < tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      result[n][i] *= factors[i / 2];
    }
  }
}

// Whether what a thread has of a result is not finite somewhere.
template <int tiles>
__device__ bool has_odd(const float (&result)[tiles][4]) {
  float odd = 0;
#pragma unroll
  for (int n = 0; n < tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      odd += result[n][i] * 0;
    }
  }
  return odd != 0;
}

// Whether a thread of the block says so.
__device__ inline bool any_of_block(bool own) { return row_reduce<Larger>(own ? 1 : 0) != 0; }

// run(D) with the narrowest tiles that the rows of a head fit.
template <typename Shape, typename Run>
bool with_tile_width(const Shape& shape, const Run& run) {
  const int64_t widest = shape.size > shape.value_size ? shape.size : shape.value_size;
  return widest <= 64 ? run(std::integral_constant<int, 64>())
                      : run(std::integral_constant<int, kMostTensorHead>());
}

// Writes what the warp has of the rows of a result, D columns, through a tile of shared memory that
// nobody else uses: finish(i, value) of row i of the thread.
template <int D, typename T, typename Finish>
__device__ void store_rows(const Head<T>& to, int64_t first, const float (&result)[D / 8][4], T* tile,
                           const Finish& finish) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      T* piece = piece_of<D>(tile, WarpElements::row(i), n);
      const uint32_t pair =
          pair_of(finish(i, result[n][2 * i]), finish(i, result[n][2 * i + 1]), T{});
      reinterpret_cast<uint32_t*>(piece)[lane % 4] = pair;
    }
  }
  __syncwarp();
  const int piece = lane % kPieces<D>;
#pragma unroll 1
  for (int i = lane / kPieces<D>; i < kWarpRows; i += kWarp / kPieces<D>) {
    const int row = static_cast<int>(threadIdx.x) / kWarp * kWarpRows + i;
    if (first + row < to.rows && piece * kPiece < to.size) {
      *reinterpret_cast<uint4*>(to.data + (first + row) * to.row + piece * kPiece) =
          *reinterpret_cast<const uint4*>(piece_of<D>(tile, row, piece));
    }
  }
}

}  // namespace
}  // namespace fusewheel
