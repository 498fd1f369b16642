// How 4-bit and 8-bit codes, as they are stored, become tiles for the tensor cores.
//
// Four lanes, the quarters, share a row of the weight. A chunk of 128 elements of it has 8 steps, a step
// has two pairs of neighbouring elements for each quarter: for the low and for the high half of its
// places in a tile. A piece is 8 elements of x, 128 bits, a word two of them; a quarter needs 4 pieces.
#pragma once

#include "common/mma.h"
#include "weight.h"

namespace fusewheel {
namespace {

constexpr int kChunk = 128;
constexpr int kLeastGroup = 32;  // quarters have whole groups

__device__ inline uint32_t word_of(const uint4& bits, int i) {
  const uint32_t words[] = {bits.x, bits.y, bits.z, bits.w};
  return words[i];
}

// A whole number from 0 to 255 as the last bits of 2^23 + number, which the subtraction leaves alone.
__device__ inline float number_of(uint32_t code, float zero) {
  return __uint_as_float(0x4b000000u | code) - (8388608.0f + zero);
}

struct Int4Tiles {
  using Stored = Int4;
  static constexpr int kVectors = 1;  // of 128 bits, a lane and chunk

  // The first element of what a quarter has in a step; all of it is in one group.
  static __host__ __device__ constexpr int element(int quarter, int) { return quarter * 32; }
  static __host__ __device__ constexpr int piece(int quarter, int i) { return quarter * 4 + i; }
  // Of a quarter's own pieces, and of that piece's words, which one a step needs.
  static __host__ __device__ constexpr int own(int step, int half) { return half * 2 + step / 4; }
  static __host__ __device__ constexpr int word(int step, int) { return step % 4; }

  // Where a piece lies in its row of shared memory: four quarters that read theirs meet in no bank, nor
  // do the lanes that write neighbouring ones.
  static __host__ __device__ constexpr int place(int piece) {
    const int quarter = piece / 4;
    return quarter / 2 * 8 + (quarter + piece) % 4 + quarter % 2 * 4;
  }

  template <typename T>
  static __device__ void pairs(const uint4 (&bits)[kVectors], int step, uint32_t (&to)[2]) {
    const uint32_t codes = word_of(bits[0], step / 2) >> (step % 2 * 16);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      to[half] = pair_of(number_of(codes >> (4 * half) & 0xf, 0),
                         number_of(codes >> (4 * half + 8) & 0xf, 0), T{});
    }
  }
};

struct Int8Tiles {
  using Stored = Int8;
  static constexpr int kVectors = 2;

  static __host__ __device__ constexpr int element(int quarter, int step) {
    return step / 4 * 64 + quarter * 16;
  }
  static __host__ __device__ constexpr int piece(int quarter, int i) {
    return i / 2 * 8 + quarter * 2 + i % 2;
  }
  static __host__ __device__ constexpr int own(int step, int) { return step / 2; }
  static __host__ __device__ constexpr int word(int step, int half) {
    return (step % 4 * 2 + half) % 4;
  }
  static __host__ __device__ constexpr int place(int piece) {
    return piece / 8 * 8 + piece % 8 / 2 + piece % 2 * 4;
  }

  template <typename T>
  static __device__ void pairs(const uint4 (&bits)[kVectors], int step, uint32_t (&to)[2]) {
    const uint32_t codes = word_of(bits[step / 4], step % 4) ^ 0x80808080u;  // 128 more, from 0 on
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      to[half] = pair_of(number_of(codes >> (16 * half) & 0xff, 128),
                         number_of(codes >> (16 * half + 8) & 0xff, 128), T{});
    }
  }
};

}  // namespace
}  // namespace fusewheel
