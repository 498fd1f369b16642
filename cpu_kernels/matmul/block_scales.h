// The scales of stored blocks as vectors of floats, for block_row.h.
#pragma once

#include "block_digits.h"

#if defined(__AVX2__)

namespace fusewheel::FUSEWHEEL_ISA {

// The scales of kSuperWeights weights, as numbers of the weights themselves, in the order of scale_at.
template <BlockKind kind>
struct Scales {
  static constexpr int kCount = scale_count(kind);
  static constexpr int kVectors = kCount < kLanes<float> ? 1 : kCount / kLanes<float>;

  Vec<float> numbers[kVectors];

  // Each for the lanes of a pair of vectors of codes.
  FUSEWHEEL_INLINE Vec<float> of(int group, int pair) const {
    Integers lane;
    if constexpr (kBytes == 32) {
      for (int i = 0; i < kLanes<float>; ++i) {
        lane[i] = i / 4 * 4 + (kVectors == 1 ? group + 2 * pair : 2 * group + i / 2 % 2);
      }
      return shuffle(numbers[kVectors == 1 ? 0 : pair], lane);
    }
    for (int i = 0; i < kLanes<float>; ++i) {
      lane[i] = element_of(kind, group, 2 * pair, i / 2) / scale_weights(kind);
    }
    if constexpr (kVectors == 1) {
      return shuffle(numbers[0], lane);
    } else {
      return shuffle(numbers[0], numbers[1], lane);
    }
  }

  FUSEWHEEL_INLINE void multiply(float factor) {
    for (auto& own : numbers) {
      own *= splat(factor);
    }
  }
};

FUSEWHEEL_INLINE __m256 first_eight(Vec<float> value) {
#if defined(__AVX512F__)
  return _mm512_castps512_ps256(bit_cast<__m512>(value));
#else
  return bit_cast<__m256>(value);
#endif
}

// 8 numbers in the first lanes, zeros in the others.
FUSEWHEEL_INLINE Vec<float> first_lanes(__m256 eight) {
#if defined(__AVX512F__)
  return bit_cast<Vec<float>>(_mm512_zextps256_ps512(eight));
#else
  return bit_cast<Vec<float>>(eight);
#endif
}

// 4 numbers in the first lanes.
FUSEWHEEL_INLINE Vec<float> lower_lanes(__m128 four) {
  return first_lanes(_mm256_castps128_ps256(four));
}

// 16 bytes with a sign as floats.
FUSEWHEEL_INLINE void to_floats(__m128i bytes, Vec<float>* to) {
#if defined(__AVX512F__)
  to[0] = __builtin_convertvector(bit_cast<Integers>(_mm512_cvtepi8_epi32(bytes)), Vec<float>);
#else
  for (int i = 0; i < 2; ++i, bytes = _mm_srli_si128(bytes, 8)) {
    to[i] = __builtin_convertvector(bit_cast<Integers>(_mm256_cvtepi8_epi32(bytes)), Vec<float>);
  }
#endif
}

// 16 bytes in the order of scale_at.
template <BlockKind kind>
FUSEWHEEL_INLINE __m128i ordered_bytes(__m128i bytes) {
  constexpr auto at = [](int place) { return static_cast<char>(scale_at(kind, place)); };
  const __m128i order = _mm_setr_epi8(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8),
                                      at(9), at(10), at(11), at(12), at(13), at(14), at(15));
  return kBytes == 64 ? bytes : _mm_shuffle_epi8(bytes, order);
}

// Of Q4_K and Q5_K: 8 scales, then 8 minima. Of each number, 6 bits, one byte has the lower four and one
// the upper two.
template <BlockKind kind>
FUSEWHEEL_INLINE void six_bits(const uint8_t* block, Vec<float>* to) {
  constexpr int lanes = kLanes<float>;
  const Bytes stored = load_sixteen(block);
  const __m128 factors = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(word_at(block))));
#pragma GCC unroll 2
  for (int i = 0; i < 16; i += lanes) {
    Bytes at = {};
    Bits low;
    Bits high;
    Integers factor;
#pragma GCC unroll 16
    for (int j = 0; j < lanes; ++j) {
      const int s = scale_at(kind, (i + j) % 8);
      const bool minimum = i + j >= 8;
      const int own = 4 + s + (s < 4 && minimum ? 4 : s < 4 ? 0 : 4);
      at[4 * j] = static_cast<int8_t>(own);
      at[4 * j + 1] = static_cast<int8_t>(s < 4 ? own : minimum ? 4 + s : s);
      low[j] = s >= 4 && minimum ? 4 : 0;
      high[j] = s < 4 ? 8 : 10;
      factor[j] = minimum ? 1 : 0;
    }
    const Bits both = bit_cast<Bits>(look_up(stored, at));
    const Bits six = (both >> low & 15) | (both >> high & 0x30);
    const Vec<float> number = __builtin_convertvector(bit_cast<Integers>(six), Vec<float>);
    to[i / lanes] = number * shuffle(lower_lanes(factors), factor);
  }
}

FUSEWHEEL_INLINE __m128i two_words(uint32_t first, uint32_t second) {
  return _mm_set_epi64x(0, static_cast<int64_t>(uint64_t{second} << 32 | first));
}

// Of Q3_K: bytes with a sign.
FUSEWHEEL_INLINE __m128i third_scales(const uint8_t* block) {
  const __m128i four_bits = _mm_set1_epi8(15);
  const __m128i stored = two_words(word_at(block + 96), word_at(block + 100));
  const __m128i low =
      _mm_and_si128(_mm_unpacklo_epi64(stored, _mm_srli_epi16(stored, 4)), four_bits);
  const __m128i high =
      _mm_and_si128(_mm_srlv_epi32(_mm_set1_epi32(static_cast<int>(word_at(block + 104))),
                                   _mm_setr_epi32(0, 2, 4, 6)),
                    _mm_set1_epi8(3));
  return _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(high, 4)), _mm_set1_epi8(32));
}

// The scales of a block of K-quants. What a weight is more than its code from the centre says, its
// minimum, is added to `total`.
template <BlockKind kind>
FUSEWHEEL_INLINE Scales<kind> super_scales(const uint8_t* block, [[maybe_unused]] const BlockDigits& a,
                                           [[maybe_unused]] Vec<float>& total) {
  [[maybe_unused]] constexpr float centre = centre_of(kind);
  Scales<kind> scales;
  if constexpr (kind == BlockKind::kQ4_K || kind == BlockKind::kQ5_K) {
    Vec<float> both[16 / kLanes<float>];
    six_bits<kind>(block, both);
#if defined(__AVX512F__)
    const __m256 minima = _mm512_extractf32x8_ps(bit_cast<__m512>(both[0]), 1);
#else
    const __m256 minima = bit_cast<__m256>(both[1]);
#endif
    const __m256 offsets = first_eight(both[0]) * centre - minima;
    total += first_lanes(offsets * _mm256_load_ps(a.parts));
    scales.numbers[0] = both[0];
  } else if constexpr (kind == BlockKind::kQ2_K) {
    const __m128i both =
        ordered_bytes<kind>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block)));
    const __m128i four_bits = _mm_set1_epi8(15);
    Vec<float> minima[Scales<kind>::kVectors];
    to_floats(_mm_and_si128(both, four_bits), scales.numbers);
    to_floats(_mm_and_si128(_mm_srli_epi16(both, 4), four_bits), minima);
    scales.multiply(converted_half(block + 80));
    const float minimum = converted_half(block + 82);
    for (int i = 0; i < Scales<kind>::kVectors; ++i) {
      total += (scales.numbers[i] * centre - minima[i] * splat(minimum)) *
               load(a.subs + i * kLanes<float>);
    }
  } else if constexpr (kind == BlockKind::kQ3_K) {
    to_floats(ordered_bytes<kind>(third_scales(block)), scales.numbers);
    scales.multiply(converted_half(block + 108));
  } else {
    static_assert(kind == BlockKind::kQ6_K, "every kind has scales");
    const auto* bytes = reinterpret_cast<const __m128i*>(block + 192);
    to_floats(ordered_bytes<kind>(_mm_loadu_si128(bytes)), scales.numbers);
    scales.multiply(converted_half(block + 208));
  }
  return scales;
}

#if defined(__AVX512F__)
// Every `bytes` bytes from `from`, a word of 16 bits; of the last word the memory ends with its second byte.
// Blocks of an odd size have every second word at its high half.
template <int bytes>
FUSEWHEEL_INLINE __m128i eight_words(const uint8_t* from) {
  constexpr int together = 62 / bytes + 1 < 4 ? 62 / bytes + 1 : 4;
  __m512i words = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int first = 0; first < 8; first += together) {
    const int count = 8 - first < together ? 8 - first : together;
    alignas(16) int16_t places[8] = {};
    uint32_t read = 0;
    for (int i = 0; i < count; ++i) {
      places[first + i] = static_cast<int16_t>(i * bytes / 2);
      read |= uint32_t{1} << places[first + i];
    }
    const __m128i lanes = _mm_load_si128(reinterpret_cast<const __m128i*>(places));
    const __mmask32 live = ((1u << count) - 1) << first;
    words = _mm512_mask_permutexvar_epi16(words, live, _mm512_castsi128_si512(lanes),
                                          _mm512_maskz_loadu_epi16(read, from + first * bytes));
  }
  return _mm512_castsi512_si128(words);
}
#endif

// The float16 numbers at byte `at` of 8 blocks, in the order of scale_at; zeros where block `live` or a later
// one would be.
template <BlockKind kind>
FUSEWHEEL_INLINE __m256 halves_at(const uint8_t* blocks, int at, int64_t live) {
  constexpr int bytes = block_format(kind).bytes;
#if defined(__AVX512F__)
  if (live >= 8) {
    return _mm256_cvtph_ps(eight_words<bytes>(blocks + at));
  }
#endif
  const auto half = [&](int place) FUSEWHEEL_INLINED {
    const int i = scale_at(kind, place);
    uint16_t number = 0;
    if (i < live) {
      __builtin_memcpy(&number, blocks + i * bytes + at, sizeof(number));
    }
    return static_cast<int16_t>(number);
  };
  return _mm256_cvtph_ps(_mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5),
                                        half(6), half(7)));
}

// Those at byte 0 of 8 blocks, then those at byte 2: a word of 32 bits is read for both.
template <BlockKind kind>
FUSEWHEEL_INLINE void pairs_of_halves(const uint8_t* blocks, int64_t live, __m256 (&to)[2]) {
  constexpr int bytes = block_format(kind).bytes;
#if defined(__AVX512F__)
  if (live >= 8) {
    to[0] = halves_at<kind>(blocks, 0, live);
    to[1] = halves_at<kind>(blocks, 2, live);
    return;
  }
#endif
  const auto word = [&](int place) FUSEWHEEL_INLINED {
    const int i = scale_at(kind, place);
    return i < live ? static_cast<int>(word_at(blocks + i * bytes)) : 0;
  };
  const __m128i first = _mm_setr_epi32(word(0), word(1), word(2), word(3));
  const __m128i last = _mm_setr_epi32(word(4), word(5), word(6), word(7));
  const __m128i zeros = _mm_setzero_si128();
  constexpr int upper = 0xaa;
  to[0] = _mm256_cvtph_ps(_mm_packus_epi32(_mm_blend_epi16(first, zeros, upper),
                                           _mm_blend_epi16(last, zeros, upper)));
  to[1] = _mm256_cvtph_ps(_mm_packus_epi32(_mm_srli_epi32(first, 16), _mm_srli_epi32(last, 16)));
}

// The scales of 8 blocks of MXFP4, likewise.
FUSEWHEEL_INLINE __m256 powers_at(const uint8_t* blocks, int64_t live) {
  constexpr BlockKind kind = BlockKind::kMXFP4;
  constexpr int bytes = block_format(kind).bytes;
#if defined(__AVX512F__)
  if (live >= 8) {
    const __m256i words = _mm256_cvtepu16_epi32(eight_words<bytes>(blocks));
    const __m256i code = _mm256_and_si256(
        _mm256_srlv_epi32(words, _mm256_setr_epi32(0, 8, 0, 8, 0, 8, 0, 8)), _mm256_set1_epi32(255));
    const __m256i power = _mm256_slli_epi32(_mm256_sub_epi32(code, _mm256_set1_epi32(1)), 23);
    // The two least powers are denormal, see power_at.
    return _mm256_castsi256_ps(
        _mm256_mask_sllv_epi32(power, _mm256_cmplt_epi32_mask(code, _mm256_set1_epi32(2)),
                               _mm256_set1_epi32(0x00200000), code));
  }
#endif
  // The two least powers are denormal, see power_at.
  const auto code_at = [&](int place) FUSEWHEEL_INLINED {
    const int i = scale_at(kind, place);
    return static_cast<char>(i < live ? blocks[i * bytes] : 0);
  };
  const __m256i code = _mm256_cvtepu8_epi32(
      _mm_setr_epi8(code_at(0), code_at(1), code_at(2), code_at(3), code_at(4), code_at(5), code_at(6),
                    code_at(7), 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i power = _mm256_slli_epi32(_mm256_sub_epi32(code, _mm256_set1_epi32(1)), 23);
  const __m256i denormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), code);
  return _mm256_castsi256_ps(
      _mm256_blendv_epi8(power, denormal, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), code)));
}

// The scales of blocks of 32 weights, of which `live` are left, and what weights are more, likewise.
template <BlockKind kind>
FUSEWHEEL_INLINE Scales<kind> small_scales(const uint8_t* blocks, int64_t live,
                                           [[maybe_unused]] const BlockDigits& a,
                                           [[maybe_unused]] Vec<float>& total) {
  __m256 own;
  if constexpr (kind == BlockKind::kMXFP4) {
    own = powers_at(blocks, live);
  } else if constexpr (kind == BlockKind::kQ4_1 || kind == BlockKind::kQ5_1) {
    constexpr float centre = centre_of(kind);
    __m256 both[2];
    pairs_of_halves<kind>(blocks, live, both);
    own = both[0];
    total += first_lanes((own * centre + both[1]) * _mm256_load_ps(a.parts));
  } else {
    own = halves_at<kind>(blocks, 0, live);
  }
  Scales<kind> scales;
  scales.numbers[0] = first_lanes(own);
  return scales;
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX2__
