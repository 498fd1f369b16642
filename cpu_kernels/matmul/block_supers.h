// One row of a against K-quants, in integers.
#pragma once

#include "block_digits.h"

#if defined(__AVX2__)

namespace fusewheel::FUSEWHEEL_ISA {

// Sums of neighbouring products of 16-bit numbers.
FUSEWHEEL_INLINE Integers multiply_add_pairs(Shorts a, Shorts b) {
#if defined(__AVX512F__)
  return bit_cast<Integers>(_mm512_madd_epi16(bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#else
  return bit_cast<Integers>(_mm256_madd_epi16(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
#endif
}

// Adds scale times the products of four neighbouring codes and digits, in each lane; `scales` are pairs of
// 16-bit numbers, of which VNNI wants the second to be 0: then one instruction sums four products, which fit
// 16 bits, and the next one scales and adds them.
template <bool vnni>
FUSEWHEEL_INLINE void add_scaled(Integers& sum, Bytes codes, Bytes digits, Integers scales) {
  if constexpr (vnni) {
    Integers products = {};
    add_products(products, codes, digits);
    add_word_products(sum, products, scales);
  } else {
    sum += multiply_add_pairs(multiply_pairs(codes, digits), bit_cast<Shorts>(scales));
  }
}

// A float16 number, by the instruction for it.
FUSEWHEEL_INLINE float converted_half(const uint8_t* at) {
  uint16_t bits;
  __builtin_memcpy(&bits, at, sizeof(bits));
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

// The scales of a block of K-quants as add_scaled wants them.
template <bool vnni>
struct ScalePairs {
  static constexpr int kVectors = kSubs / kLanes<float>;
  Integers words[kVectors];

  FUSEWHEEL_INLINE explicit ScalePairs(__m128i stored) {
    const auto pairs = [](Integers scale) {
      const Integers low = scale & 0xffff;
      return vnni ? low : low | scale << 16;
    };
#if defined(__AVX512F__)
    words[0] = pairs(bit_cast<Integers>(_mm512_cvtepi8_epi32(stored)));
#else
    words[0] = pairs(bit_cast<Integers>(_mm256_cvtepi8_epi32(stored)));
    words[1] = pairs(bit_cast<Integers>(_mm256_cvtepi8_epi32(_mm_srli_si128(stored, 8))));
#endif
  }

  // Those of vector `v` of codes, each for the kSubWeights / 4 lanes of its sub-block.
  FUSEWHEEL_INLINE Integers of(int v) const {
    constexpr int together = kBytes / kSubWeights;
    const int first = v * together;
    Integers lane;
    for (int i = 0; i < kLanes<float>; ++i) {
      lane[i] = first % kLanes<float> + i / (kSubWeights / 4);
    }
    return shuffle(words[first / kLanes<float>], lane);
  }
};

// 8 whole numbers in the first lanes, zeros in the others.
FUSEWHEEL_INLINE Integers first_lanes(__m256i eight) {
#if defined(__AVX512F__)
  return bit_cast<Integers>(_mm512_zextsi256_si512(eight));
#else
  return bit_cast<Integers>(eight);
#endif
}

// The sums of all digits as one number.
template <int planes>
FUSEWHEEL_INLINE Vec<float> join(const Integers* sums) {
  Vec<float> all = __builtin_convertvector(sums[0], Vec<float>);
#pragma GCC unroll 2
  for (int p = 1; p < planes; ++p) {
    all = all * 256.0f + __builtin_convertvector(sums[p], Vec<float>);
  }
  return all;
}

// What a row of K-quants has added up.
template <BlockKind kind, int planes, bool vnni>
struct SuperRow {
  static constexpr int kCentre = centre_of(kind);
  static constexpr int kScaleAt = kind == BlockKind::kQ2_K   ? 80
                                  : kind == BlockKind::kQ3_K ? 108
                                  : kind == BlockKind::kQ6_K ? 208
                                                             : 0;

  Vec<float> total = {};
  __m256 offsets = _mm256_setzero_ps();

  FUSEWHEEL_INLINE void add(const uint8_t* block, const BlockDigits& a) {
    const __m128i stored = super_scales<kind>(block);
    const ScalePairs<vnni> pairs(stored);
    const __m256i scales = _mm256_cvtepi8_epi16(stored);
    Integers sums[planes];
#pragma GCC unroll 3
    for (int p = 0; p < planes; ++p) {
      const __m256i own = _mm256_madd_epi16(
          scales, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a.sums[p])));
      sums[p] = -(first_lanes(own) * kCentre);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kSuperParts / kVectorParts; ++v) {
      const Bytes codes = super_codes<kind>(block, v);
      const Integers scale = pairs.of(v);
#pragma GCC unroll 3
      for (int p = 0; p < planes; ++p) {
        add_scaled<vnni>(sums[p], codes, load_bytes(a.digits[p] + v * kBytes), scale);
      }
    }
    const float scale = converted_half(block + kScaleAt);
    total += join<planes>(sums) * splat(scale * a.step);
    add_offsets(block, stored, scale, a);
  }

 private:
  // Of the minima, and of what codes were taken to be less.
  FUSEWHEEL_INLINE void add_offsets([[maybe_unused]] const uint8_t* block,
                                    [[maybe_unused]] __m128i stored, [[maybe_unused]] float scale,
                                    [[maybe_unused]] const BlockDigits& a) {
    [[maybe_unused]] const auto offset = [&](__m128i own, __m128i minima, float minimum, const float* by) {
      offsets += (bytes_as_floats(own) * (scale * kCentre) - bytes_as_floats(minima) * minimum) *
                 _mm256_loadu_ps(by);
    };
    if constexpr (kind == BlockKind::kQ4_K || kind == BlockKind::kQ5_K) {
      const uint32_t second = word_at(block + 8);
      const uint32_t last = word_at(block + 12);
      const __m128i minima =
          two_words(second & 0x3f3f3f3f,
                    (last >> 4 & 0x0f0f0f0f) | (second >> 6 & 0x03030303) << 4);
      const __m128i evens = _mm_shuffle_epi8(
          stored, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, -1, -1, -1, -1, -1, -1, -1, -1));
      offset(evens, minima, converted_half(block + 2), a.parts);
    } else if constexpr (kind == BlockKind::kQ2_K) {
      const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block));
      const __m128i minima = _mm_and_si128(_mm_srli_epi16(both, 4), _mm_set1_epi8(15));
      const float minimum = converted_half(block + 82);
      offset(stored, minima, minimum, a.subs);
      offset(_mm_srli_si128(stored, 8), _mm_srli_si128(minima, 8), minimum, a.subs + 8);
    }
  }
};

// A row of K-quants times a.
template <BlockKind kind, int planes, bool vnni>
FUSEWHEEL_INLINE float dot_supers(const uint8_t* block, int64_t supers, const BlockDigits* a) {
  constexpr int bytes = block_format(kind).bytes;
  SuperRow<kind, planes, vnni> row;
  for (; supers-- > 0; block += bytes, ++a) {
    prefetch(block, kPrefetchAhead, bytes);
    row.add(block, *a);
  }
  return sum<float>(row.total) + sum_of_eight(row.offsets);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX2__
