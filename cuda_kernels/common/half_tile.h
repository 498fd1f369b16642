// Tiles of half types in shared memory, as the tensor cores take them.
//
// A tile has rows of D elements. A piece is 8 neighbouring elements, 128 bits. Pieces of a row change
// places so that those at the same place of 8 rows are in different banks.
#pragma once

#include "mma.h"

namespace fusewheel {
namespace {

constexpr int kPiece = 8;
template <int D>
constexpr int kPieces = D / kPiece;

template <int D, typename T>
__device__ T* piece_of(T* tile, int row, int piece) {
  static_assert(kPieces<D> % 8 == 0, "rows of whole banks");
  // Written so that the places of later pieces differ by a constant.
  return tile + (row * kPieces<D> + (piece & ~7) + ((piece ^ row) & 7)) * kPiece;
}

// The left factors of 16 rows, 16 elements of each from element 16 * step on.
template <int D, typename T>
__device__ void load_left(const T* tile, int row, int step, uint32_t (&to)[4]) {
  const int lane = threadIdx.x % kWarp;
  load_matrices<false>(piece_of<D>(tile, row + lane % 16, step * 2 + lane / 16), to);
}

// The left factors of 16 columns, 16 elements down each from row 16 * step on.
template <int D, typename T>
__device__ void load_left_columns(const T* tile, int column, int step, uint32_t (&to)[4]) {
  const int lane = threadIdx.x % kWarp;
  load_matrices<true>(piece_of<D>(tile, step * kMmaInner + lane / 16 * 8 + lane % 8,
                                  column / kPiece + lane / 8 % 2),
                      to);
}

// The right factors for the products with 16 rows of a tile, 16 elements of each: the first two words
// are those of the first 8 rows.
template <int D, typename T>
__device__ void load_rows(const T* tile, int row, int step, uint32_t (&to)[4]) {
  const int lane = threadIdx.x % kWarp;
  load_matrices<false>(
      piece_of<D>(tile, row + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2), to);
}

// The right factors for the products with 16 columns of a tile, over 16 rows: the first two words are
// those of the first 8 columns.
template <int D, typename T>
__device__ void load_columns(const T* tile, int row, int column, uint32_t (&to)[4]) {
  const int lane = threadIdx.x % kWarp;
  load_matrices<true>(piece_of<D>(tile, row + lane % 16, column / kPiece + lane / 16), to);
}

template <typename T>
__device__ void multiply_pair(const uint32_t (&left)[4], const uint32_t (&right)[4],
                              float (&first)[4], float (&second)[4], T type) {
  const uint32_t halves[2][2] = {{right[0], right[1]}, {right[2], right[3]}};
  multiply_add_tiles(left, halves[0], first, type);
  multiply_add_tiles(left, halves[1], second, type);
}

}  // namespace
}  // namespace fusewheel
