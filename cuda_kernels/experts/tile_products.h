// Products of tiles in shared memory, for groups with many rows: a tile of two matrices serves 64 rows
// and 64 columns of the result.
#pragma once

#include "common/reduce.h"
#include "tile_source.h"

namespace fusewheel {
namespace {

constexpr int kTileRows = 4;     // of a thread
constexpr int kTileColumns = 8;  // of a thread

// Elements that are multiplied and added up before the next tiles come.
template <typename A>
constexpr int kTileInner = sizeof(A) == sizeof(double) ? 16 : 32;

// How many blocks a multiprocessor should run at a time: all its registers, but none goes to memory.
template <typename A>
constexpr int kTileBlocks = sizeof(A) == sizeof(double) ? 2 : 4;

template <typename A>
struct alignas(kVectorBytes) Tile {
  A numbers[kTile * kTileInner<A>];
};

// Tiles lie by inner element. Where a tile is written by vectors of V elements of its source, whichever
// way they lie, and read by rows, no two lanes that are served together meet in a bank.
template <typename A, int V>
__device__ int tile_place(int outer, int inner) {
  return inner * kTile + (outer ^ (inner / V * V));
}

__device__ inline int at_most(int most, int64_t count) {
  return count < most ? static_cast<int>(count) : most;
}

// All threads of the block must call it.
template <typename Source, typename A>
__device__ void fill_tile(const Source& source, const TileRange& range, A* tile) {
  constexpr int V = kLanes<typename Source::Type>;
  constexpr int kAcross = (Source::along_inner ? kTileInner<A> : kTile) / V;
  constexpr int kVectors = kTile * kTileInner<A> / V;
  [[maybe_unused]] constexpr int kAtOnce = V > kLanes<A> ? 1 : 2;  // as many as there are registers for
  const int thread = threadIdx.y * kWarp + threadIdx.x;
  const int outer_left = at_most(kTile, range.outer_end - range.outer);
  const int inner_left = at_most(kTileInner<A>, range.inner_end - range.inner);
#pragma unroll kAtOnce
  for (int i = 0; i < kVectors / kTileThreads; ++i) {
    const int vector = thread + i * kTileThreads;
    const int along = vector % kAcross * V;
    const int across = vector / kAcross;
    const int outer = Source::along_inner ? across : along;
    const int inner = Source::along_inner ? along : across;
    const bool exists = outer < outer_left && inner < inner_left;
    const int left = Source::along_inner ? inner_left - inner : outer_left - outer;
    const int live = exists ? left : 0;
    A values[V];
    source.read(range.outer + outer, range.inner + inner, live, values);
    if constexpr (Source::along_inner) {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        tile[tile_place<A, V>(outer, inner + j)] = values[j];
      }
    } else {
      // Two pieces of a vector: half of the lanes begin with the second one.
      constexpr int P = kLanes<A>;
      const int turned = V > P ? thread / 4 % 2 : 0;
#pragma unroll
      for (int j = 0; j < V; j += P) {
        A piece[P];
#pragma unroll
        for (int k = 0; k < P; ++k) {
          piece[k] = turned != 0 ? values[(j + P) % V + k] : values[j + k];
        }
        store(tile + tile_place<A, V>(outer, inner) + (j + turned * P) % V, piece);
      }
    }
  }
}

// What a thread has of a tile of the result: rows side by side, and columns in pieces of 128 bits, the
// pieces of 8 threads side by side.
template <typename A>
struct TileSums {
  A sums[kTileRows][kTileColumns] = {};

  __device__ static int row() { return threadIdx.y * 16 + threadIdx.x / 8 * kTileRows; }
  // Of a piece.
  __device__ static int column(int piece) {
    return (piece * 8 + static_cast<int>(threadIdx.x % 8)) * kLanes<A>;
  }

  // Adds the products of two tiles. They are added up by themselves first: a long chain of sums would
  // round more.
  template <int VA, int VB>
  __device__ void add(const A* a, const A* b) {
    constexpr int P = kLanes<A>;
    A own[kTileRows][kTileColumns] = {};
#pragma unroll 4
    for (int i = 0; i < kTileInner<A>; ++i) {
      A left[kTileRows];
      A right[kTileColumns];
#pragma unroll
      for (int r = 0; r < kTileRows; r += P) {
        A piece[P];
        load(a + tile_place<A, VA>(row() + r, i), piece);
#pragma unroll
        for (int k = 0; k < P; ++k) {
          left[r + k] = piece[k];
        }
      }
#pragma unroll
      for (int c = 0; c < kTileColumns; c += P) {
        A piece[P];
        load(b + tile_place<A, VB>(column(c / P), i), piece);
#pragma unroll
        for (int k = 0; k < P; ++k) {
          right[c + k] = piece[k];
        }
      }
#pragma unroll
      for (int r = 0; r < kTileRows; ++r) {
#pragma unroll
        for (int c = 0; c < kTileColumns; ++c) {
          own[r][c] = multiply_add(left[r], right[c], own[r][c]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
#pragma unroll
      for (int c = 0; c < kTileColumns; ++c) {
        sums[r][c] += own[r][c];
      }
    }
  }

  // Writes the first row, from `to` on; `left` columns exist. All lanes of a warp must call it.
  template <typename T>
  __device__ void write(bool exists, T* to, int64_t left, bool aligned) const {
    constexpr int P = kLanes<A>;
    if constexpr (sizeof(T) < sizeof(A) && kLanes<T> == 2 * P) {
      // Of neighbouring threads one takes both first pieces, the other both second ones.
      const bool odd = threadIdx.x % 2 != 0;
      A both[2 * P];
#pragma unroll
      for (int k = 0; k < P; ++k) {
        const A kept = odd ? sums[0][P + k] : sums[0][k];
        const A given = odd ? sums[0][k] : sums[0][P + k];
        const A got = __shfl_xor_sync(0xffffffffu, given, 1);
        both[k] = odd ? got : kept;
        both[P + k] = odd ? kept : got;
      }
      const int first = odd ? column(1) - P : column(0);
      write_some(both, exists, to + first, left - first, aligned);
    } else {
#pragma unroll
      for (int c = 0; c < kTileColumns; c += P) {
        A piece[P];
#pragma unroll
        for (int k = 0; k < P; ++k) {
          piece[k] = sums[0][c + k];
        }
        const int first = column(c / P);
        write_some(piece, exists, to + first, left - first, aligned);
      }
    }
  }

 private:
  template <typename T, int V>
  __device__ static void write_some(const A (&values)[V], bool exists, T* to, int64_t left,
                                    bool aligned) {
    Accumulate<T> own[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      own[i] = static_cast<Accumulate<T>>(values[i]);
    }
    if constexpr (V % kLanes<T> == 0) {
      if (exists && aligned && left >= V) {
        store(to, own);
        return;
      }
    }
    store(to, own, exists ? left : 0);
  }
};

// sums = the products of rows of two sources, over their common inner elements. All threads of the
// block must call it.
template <typename Left, typename Right, typename A>
__device__ void multiply_tiles(const Left& left, TileRange rows, const Right& right,
                               TileRange columns, Tile<A> (&tiles)[2],
                               TileSums<A>& sums) {
  while (rows.inner < rows.inner_end) {
    __syncthreads();  // the tiles before have been read
    fill_tile(left, rows, tiles[0].numbers);
    fill_tile(right, columns, tiles[1].numbers);
    __syncthreads();
    sums.template add<kLanes<typename Left::Type>, kLanes<typename Right::Type>>(
        tiles[0].numbers, tiles[1].numbers);
    rows.inner += kTileInner<A>;
    columns.inner += kTileInner<A>;
  }
}

}  // namespace
}  // namespace fusewheel
