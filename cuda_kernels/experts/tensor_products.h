// Products of tiles in half types by tensor cores, for groups with many rows: a block has 64 rows and 128
// columns of the result. Rows in float16 may meet weights in bfloat16: a number of float16, which has 11
// digits, is the sum of two in bfloat16, which has 8 and a larger range.
#pragma once

#include "common/half_tile.h"
#include "tile_source.h"

namespace fusewheel {
namespace {

constexpr int kTensorColumns = 128;  // of the result
constexpr int kTensorInner = 64;     // elements that are multiplied before the next tiles come
constexpr int kTensorStages = 2;     // while one is multiplied, the next one is on its way

// Two warps lie side by side, and two one above the other.
constexpr int kWarpRows = kTile / 2;
constexpr int kWarpColumns = kTensorColumns / 2;
constexpr int kRowTiles = kWarpRows / kMmaRows;
constexpr int kColumnTiles = kWarpColumns / kMmaColumns;
static_assert(kTileWarps == 4, "two warps each way");

// kOuter rows (or columns) of an operand, kTensorInner elements of each, as they lie in memory.
template <typename Source, int kOuter>
struct TensorTile {
  using T = typename Source::Type;
  static constexpr bool kAlongInner = Source::along_inner;
  static constexpr int kWidth = kAlongInner ? kTensorInner : kOuter;
  static constexpr int kElements = kTensorInner * kOuter;

  // Begins to copy; what is beyond the range is zero.
  static __device__ void begin(const Source& source, const TileRange& range, T* tile) {
    const int thread = threadIdx.y * kWarp + threadIdx.x;
    const int piece = thread % kPieces<kWidth>;
    constexpr int kTogether = kTileThreads / kPieces<kWidth>;  // rows
#pragma unroll 2  // addresses of all rows would take too many registers
    for (int i = 0; i < kElements / kWidth / kTogether; ++i) {
      const int row = thread / kPieces<kWidth> + i * kTogether;
      const int64_t outer = range.outer + (kAlongInner ? row : piece * kPiece);
      const int64_t inner = range.inner + (kAlongInner ? piece * kPiece : row);
      const bool exists = outer < range.outer_end && inner < range.inner_end;
      copy_async(piece_of<kWidth>(tile, row, piece),
                 exists ? source.from(outer, inner) : source.data, exists);
    }
  }

  // The left factors of 16 outer rows, 16 elements of each from element 16 * step on.
  static __device__ void left(const T* tile, int outer, int step, uint32_t (&to)[4]) {
    if constexpr (kAlongInner) {
      load_left<kWidth>(tile, outer, step, to);
    } else {
      load_left_columns<kWidth>(tile, outer, step, to);
    }
  }

  // Likewise the right factors: the first two words are those of the first 8 rows.
  static __device__ void right(const T* tile, int outer, int step, uint32_t (&to)[4]) {
    if constexpr (kAlongInner) {
      load_rows<kWidth>(tile, outer, step, to);
    } else {
      load_columns<kWidth>(tile, step * kMmaInner, outer, to);
    }
  }
};

constexpr int kTensorStage = (kTile + kTensorColumns) * kTensorInner;  // elements
template <typename T>
constexpr size_t kTensorBytes = kTensorStages * kTensorStage * sizeof(T);

// Two neighbouring numbers of float16, each as the sum of two in bfloat16. Of an infinity the rest is NaN.
__device__ inline void split_pair(uint32_t pair, uint32_t& first, uint32_t& rest) {
  __half numbers[2];
  memcpy(numbers, &pair, sizeof(pair));
  const float low = widen(numbers[0]);
  const float high = widen(numbers[1]);
  first = pair_of(cut(low), cut(high), __nv_bfloat16{});
  rest = pair_of(low - cut(low), high - cut(high), __nv_bfloat16{});
}

// A left factor of type A is the sum of so many, where it meets right factors of type B.
template <typename A, typename B>
constexpr int kSummands = std::is_same_v<A, B> ? 1 : 2;

template <int summands>
__device__ void split_factors(uint32_t (&factors)[summands][4]) {
  if constexpr (summands == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      split_pair(factors[0][i], factors[0][i], factors[1][i]);
    }
  }
}

// What a thread has of a tile of the result.
struct TensorSums {
  float sums[kRowTiles][kColumnTiles][4] = {};

  static __device__ int first_row() { return static_cast<int>(threadIdx.y) / 2 * kWarpRows; }
  static __device__ int first_column() { return static_cast<int>(threadIdx.y) % 2 * kWarpColumns; }

  // Of element k of tile m.
  static __device__ int row(int m, int k) {
    return first_row() + m * kMmaRows + static_cast<int>(threadIdx.x) / 4 + k / 2 * 8;
  }
  // Of the pair of tile n.
  static __device__ int column(int n) {
    return first_column() + n * kMmaColumns + static_cast<int>(threadIdx.x) % 4 * 2;
  }

  // Adds the products of two tiles.
  template <typename Left, typename Right>
  __device__ void add(const typename Left::T* a, const typename Right::T* b) {
    using B = typename Right::T;
    constexpr int summands = kSummands<typename Left::T, B>;
    // Other operands would need more registers for two steps at once than there are.
    [[maybe_unused]] constexpr int kTogether = summands == 1 && Right::kAlongInner ? 2 : 1;
#pragma unroll(kTogether)
    for (int step = 0; step < kTensorInner / kMmaInner; ++step) {
      uint32_t left[kRowTiles][summands][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        Left::left(a, first_row() + m * kMmaRows, step, left[m][0]);
        split_factors(left[m]);
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; n += 2) {
        uint32_t right[4];
        Right::right(b, first_column() + n * kMmaColumns, step, right);
#pragma unroll
        for (int i = 0; i < kRowTiles * summands; ++i) {
          const int m = i % kRowTiles;
          multiply_pair(left[m][i / kRowTiles], right, sums[m][n], sums[m][n + 1], B{});
        }
      }
    }
  }

  // Writes the rows before row_end and the columns before column_end, whole pieces, to a matrix of so
  // many columns, through shared memory that no thread reads any more. Each piece is given to `mend`
  // with its row and first column before.
  template <typename T, typename Mend>
  __device__ void write(T* to, int64_t columns, int64_t row, int64_t row_end, int64_t column,
                        int64_t column_end, T* shared, const Mend& mend) const {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
          const int own = TensorSums::column(n);
          T* piece = piece_of<kTensorColumns>(shared, TensorSums::row(m, k), own / kPiece);
          reinterpret_cast<uint32_t*>(piece)[own % kPiece / 2] =
              pair_of(sums[m][n][k], sums[m][n][k + 1], T{});
        }
      }
    }
    __syncthreads();
    constexpr int kTogether = kTileThreads / kPieces<kTensorColumns>;  // rows
    const int thread = threadIdx.y * kWarp + threadIdx.x;
    const int piece = thread % kPieces<kTensorColumns>;
#pragma unroll 1
    for (int i = thread / kPieces<kTensorColumns>; i < kTile; i += kTogether) {
      const int64_t at = column + piece * kPiece;
      if (row + i < row_end && at < column_end) {
        T* own = piece_of<kTensorColumns>(shared, i, piece);
        mend(own, row + i, at);
        *reinterpret_cast<uint4*>(to + (row + i) * columns + at) =
            *reinterpret_cast<const uint4*>(own);
      }
    }
  }
};

// sums += the products of rows of two sources, over their common inner elements. The second is the sum of
// so many matrices, that many bytes apart: what the first has is copied for each of them, side by side in
// time, so that caches still hold it. All threads of the block must call it; none reads the stages when it
// returns.
template <typename Left, typename Right, typename T>
__device__ void multiply_by_tensor_cores(const Left& left, TileRange rows, const Right& right,
                                         TileRange columns, int matrices, int64_t matrix_step,
                                         T* stages, TensorSums& sums) {
  using Rows = TensorTile<Left, kTile>;
  using Columns = TensorTile<Right, kTensorColumns>;
  const auto right_tile = [](T* stage) {
    return reinterpret_cast<typename Columns::T*>(stage + Rows::kElements);
  };
  int matrix = 0;
  const auto begin = [&](T* stage) {
    if (rows.inner < rows.inner_end) {
      Rows::begin(left, rows, stage);
      Columns::begin(right.at(matrix * matrix_step), columns, right_tile(stage));
    }
    end_group_of_copies();
    if (++matrix == matrices) {
      matrix = 0;
      rows.inner += kTensorInner;
      columns.inner += kTensorInner;
    }
  };
  const int64_t steps =
      (rows.inner_end - rows.inner + kTensorInner - 1) / kTensorInner * matrices;
  begin(stages);
#pragma unroll 1
  for (int64_t step = 0; step < steps; ++step) {
    T* own = stages + step % kTensorStages * kTensorStage;
    begin(stages + (step + 1) % kTensorStages * kTensorStage);
    wait_for_copies<kTensorStages - 1>();
    __syncthreads();
    sums.template add<Rows, Columns>(own, right_tile(own));
    __syncthreads();  // the stage has been read: it is written next
  }
}

}  // namespace
}  // namespace fusewheel
