// One row of a against blocks of 32 weights, in integers. Each block has a scale of its own, so that its
// products become floats apart.
#pragma once

#include "block_digits.h"

#if defined(__AVX2__)

namespace fusewheel::FUSEWHEEL_ISA {

constexpr bool has_minima(BlockKind kind) {
  return kind == BlockKind::kQ4_1 || kind == BlockKind::kQ5_1;
}

// A vector of codes times the digits of a, in steps, four neighbours in each lane.
template <int planes, bool vnni>
FUSEWHEEL_INLINE Integers whole_products(Bytes codes, const BlockDigits& a, int v) {
  Integers start;
  __builtin_memcpy(&start, a.start + v * kLanes<float>, sizeof(start));
  Integers sums[planes];
#pragma GCC unroll 3
  for (int p = 0; p < planes; ++p) {
    const Bytes digits = load_bytes(a.digits[p] + v * kBytes);
    if constexpr (vnni) {
      sums[p] = p + 1 < planes ? Integers{} : start;
      add_products(sums[p], codes, digits);
    } else {
      sums[p] = add_pairs(multiply_pairs(codes, digits));
    }
  }
  Integers whole = sums[0];
#pragma GCC unroll 2
  for (int p = 1; p < planes; ++p) {
    whole = (whole << 8) + sums[p];
  }
  return vnni ? whole : whole + start;
}

// 8 numbers, each for the lanes of its part of kSuperParts.
struct PartNumbers {
#if defined(__AVX512F__)
  Vec<float> numbers;

  FUSEWHEEL_INLINE explicit PartNumbers(__m256 eight)
      : numbers(bit_cast<Vec<float>>(_mm512_zextps256_ps512(eight))) {}

  FUSEWHEEL_INLINE Vec<float> of(int v) const {
    Integers lane;
    for (int i = 0; i < kLanes<float>; ++i) {
      lane[i] = v * kVectorParts + i / (kLanes<float> / kVectorParts);
    }
    return shuffle(numbers, lane);
  }
#else
  alignas(32) float numbers[kSuperParts];

  FUSEWHEEL_INLINE explicit PartNumbers(__m256 eight) { _mm256_store_ps(numbers, eight); }

  FUSEWHEEL_INLINE Vec<float> of(int v) const { return splat(numbers[v]); }
#endif
};

// A row of `parts` blocks of 32 weights times a.
template <BlockKind kind, int planes, bool vnni>
FUSEWHEEL_INLINE float dot_smalls(const uint8_t* blocks, int64_t parts, const BlockDigits* a) {
  constexpr int bytes = block_format(kind).bytes;
  constexpr int centre = centre_of(kind);
  Vec<float> total = {};
  __m256 offsets = _mm256_setzero_ps();
  for (; parts > 0; parts -= kSuperParts, blocks += kSuperParts * bytes, ++a) {
    prefetch(blocks, kPrefetchAhead, kSuperParts * bytes);
    const __m256 own = small_scales<kind>(blocks, parts);
    const PartNumbers scales(own * a->step);
    const int64_t live = parts < kSuperParts ? parts : kSuperParts;
    const auto step = [&](int v) {
      const Integers whole =
          whole_products<planes, vnni>(small_codes<kind>(blocks, v, live), *a, v);
      total += __builtin_convertvector(whole, Vec<float>) * scales.of(v);
    };
    if (live == kSuperParts) {
#pragma GCC unroll 8
      for (int v = 0; v < kSuperParts / kVectorParts; ++v) {
        step(v);
      }
    } else {
      for (int v = 0; v * kVectorParts < live; ++v) {
        step(v);
      }
    }
    if constexpr (kind == BlockKind::kQ4_1 || kind == BlockKind::kQ5_1) {
      const __m256 minima = halves_at<bytes>(blocks, 2, parts);
      offsets += (minima + own * float{centre}) * _mm256_loadu_ps(a->parts);
    }
  }
  return sum<float>(total) + sum_of_eight(offsets);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX2__
