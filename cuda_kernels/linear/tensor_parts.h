// float32 activations, and weights in a half type, as sums of bfloat16 numbers for the tensor cores.
//
// A number of float32 has 24 binary digits, one of bfloat16 has 8 and the same range. So
//   x = part 0 + part 1 / 256 + part 2 / 256^2
// exactly. Parts are cut off, not rounded: the largest number would become infinite. What is left is
// multiplied by 256 for the next part. So the last digit of the smallest number of float32, 2^-149,
// becomes that of bfloat16, 2^-133. And parts of large numbers stay finite: where x is below 2^n, but not
// below 2^(n - 1), a cut leaves less than 2^(n - 8), which times 256 is below 2^n again.
// float16 has 11 digits and a smaller range, and is two parts.
//
// Parts of an infinity, or of NaN, are not finite and give results that are not.
#pragma once

#include "tensor_codes.h"

namespace fusewheel {
namespace {

constexpr int kFloatParts = 3;
constexpr float kPartStep = 256;

__device__ inline uint32_t upper_halves(float low, float high) {
  return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
}

// The parts of two neighbouring elements.
template <int count>
__device__ void split(float low, float high, uint32_t (&parts)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) {
    parts[i] = upper_halves(low, high);
    low = (low - cut(low)) * kPartStep;
    high = (high - cut(high)) * kPartStep;
  }
}

// How a weight of floating numbers becomes tiles, as `Int8Tiles` says it of codes. A chunk has 64
// elements, a strip of it 32: a vector of each quarter, two steps. A quarter's piece of x is 4 elements
// of float32, its part of a step.
template <typename W>
struct FloatTiles {
  using Stored = Floats<W>;
  static constexpr int kVectors = 2;
  static constexpr int kParts = std::is_same_v<W, __nv_bfloat16> ? 1 : 2;

  // A lane has two pieces for a vector, as it has for 16 codes.
  static __host__ __device__ constexpr int piece(int quarter, int i) {
    return Int8Tiles::piece(quarter, i);
  }
  static __host__ __device__ constexpr int place(int piece) { return Int8Tiles::place(piece); }

  // One part of the pairs of a step.
  static __device__ void pairs(const uint4& vector, int step, int part, uint32_t (&to)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t word = word_of(vector, step * 2 + half);
      if constexpr (kParts == 1) {
        to[half] = word;
      } else {
        W elements[2];
        memcpy(elements, &word, sizeof(word));
        uint32_t parts[kParts];
        split(widen(elements[0]), widen(elements[1]), parts);
        to[half] = parts[part];
      }
    }
  }
};

}  // namespace
}  // namespace fusewheel
