// The codes and scales of stored blocks as vectors of integers, for block_supers.h and block_smalls.h.
//
// A vector has the codes of kVectorParts parts of a row (32 weights each). Codes are not negative;
// kCentre is what a weight takes off, so that w = (code - kCentre) * scale + offset.
#pragma once

#include <immintrin.h>

#include "blocks.h"
#include "simd/bytes.h"

namespace fusewheel::FUSEWHEEL_ISA {

constexpr int kVectorParts = kBytes / kBlockPart;
// Parts whose activations share a step: those of a block of K-quants, or 8 blocks of the others.
constexpr int kSuperParts = 8;
constexpr int kSuperWeights = kSuperParts * kBlockPart;

constexpr bool has_sub_blocks(BlockKind kind) { return block_format(kind).weights == kSuperWeights; }

// Whether a kind's codes are small whole numbers, so that products of two bytes fit 16 bits.
constexpr bool has_small_codes(BlockKind kind) {
  return has_sub_blocks(kind) || kind == BlockKind::kQ4_0 || kind == BlockKind::kQ4_1 ||
         kind == BlockKind::kQ5_0 || kind == BlockKind::kQ5_1 || kind == BlockKind::kMXFP4;
}

constexpr int centre_of(BlockKind kind) {
  switch (kind) {
    case BlockKind::kQ2_K: return 2;
    case BlockKind::kQ3_K: return 4;
    case BlockKind::kQ5_0:
    case BlockKind::kQ5_1:
    case BlockKind::kQ5_K: return 16;
    case BlockKind::kQ6_K: return 32;
    case BlockKind::kMXFP4: return 12;
    default: return 8;
  }
}

// 32 bytes, once for each part of a vector.
FUSEWHEEL_INLINE Bytes load_shared(const uint8_t* from) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
#if defined(__AVX512F__)
  return bit_cast<Bytes>(_mm512_broadcast_i64x4(bytes));
#else
  return bit_cast<Bytes>(bytes);
#endif
}

// The bits of each byte from bit `shift` on, a multiple of `step` more in the second part. Bits of the
// byte's neighbour come from above: mask them off.
FUSEWHEEL_INLINE Bytes shift_parts(Bytes bytes, int shift, [[maybe_unused]] int step) {
#if defined(__AVX512F__)
  const __m512i counts = _mm512_inserti64x4(_mm512_set1_epi16(static_cast<int16_t>(shift)),
                                            _mm256_set1_epi16(static_cast<int16_t>(shift + step)), 1);
  return bit_cast<Bytes>(_mm512_srlv_epi16(bit_cast<__m512i>(bytes), counts));
#else
  return bit_cast<Bytes>(_mm256_srli_epi16(bit_cast<__m256i>(bytes), shift));
#endif
}

FUSEWHEEL_INLINE Bytes shift_left(Bytes bytes, int count) {
  return bit_cast<Bytes>(bit_cast<Shorts>(bytes) << static_cast<int16_t>(count));
}

// Vector `v` of the codes of a block of K-quants.
template <BlockKind kind>
FUSEWHEEL_INLINE Bytes super_codes(const uint8_t* block, int v) {
  const int part = v * kVectorParts;
  if constexpr (kind == BlockKind::kQ4_K || kind == BlockKind::kQ5_K) {
    constexpr bool has_fifth = kind == BlockKind::kQ5_K;
    const Bytes pair = load_shared(block + (has_fifth ? 48 : 16) + part / 2 * 32);
    const Bytes low = shift_parts(pair, 4 * (part % 2), 4) & 15;
    if constexpr (has_fifth) {
      return low | shift_left(shift_parts(load_shared(block + 16), part, 1) & 1, 4);
    }
    return low;
  } else if constexpr (kind == BlockKind::kQ6_K) {
    const Bytes both = load_bytes(block + part / 4 * 64 + part % 2 * 32);
    const Bytes low = shift_parts(both, part % 4 / 2 * 4, 0) & 15;
    const Bytes high = load_shared(block + 128 + part / 4 * 32);
    return low | shift_left(shift_parts(high, 2 * (part % 4), 2) & 3, 4);
  } else {
    constexpr bool has_third = kind == BlockKind::kQ3_K;
    const Bytes four = load_shared(block + (has_third ? 32 : 16) + part / 4 * 32);
    const Bytes low = shift_parts(four, 2 * (part % 4), 2) & 3;
    if constexpr (has_third) {
      return low | shift_left(shift_parts(load_shared(block), part, 1) & 1, 2);
    }
    return low;
  }
}

FUSEWHEEL_INLINE uint32_t word_at(const uint8_t* from) {
  uint32_t word;
  __builtin_memcpy(&word, from, sizeof(word));
  return word;
}

FUSEWHEEL_INLINE __m128i two_words(uint32_t first, uint32_t second) {
  return _mm_set_epi64x(0, static_cast<int64_t>(uint64_t{second} << 32 | first));
}

// The scales of a block of K-quants as bytes with a sign, one for each 16 weights.
template <BlockKind kind>
FUSEWHEEL_INLINE __m128i super_scales(const uint8_t* block) {
  const __m128i four_bits = _mm_set1_epi8(15);
  if constexpr (kind == BlockKind::kQ4_K || kind == BlockKind::kQ5_K) {
    const uint32_t first = word_at(block + 4);
    const uint32_t last = word_at(block + 12);
    const __m128i scales = two_words(first & 0x3f3f3f3f,
                                     (last & 0x0f0f0f0f) | (first >> 6 & 0x03030303) << 4);
    return _mm_unpacklo_epi8(scales, scales);
  } else if constexpr (kind == BlockKind::kQ6_K) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 192));
  } else if constexpr (kind == BlockKind::kQ2_K) {
    return _mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block)), four_bits);
  } else {
    const __m128i stored = two_words(word_at(block + 96), word_at(block + 100));
    const __m128i low =
        _mm_and_si128(_mm_unpacklo_epi64(stored, _mm_srli_epi16(stored, 4)), four_bits);
    const __m128i high = _mm_and_si128(
        _mm_srlv_epi32(_mm_set1_epi32(static_cast<int>(word_at(block + 104))),
                       _mm_setr_epi32(0, 2, 4, 6)),
        _mm_set1_epi8(3));
    return _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(high, 4)), _mm_set1_epi8(32));
  }
}

FUSEWHEEL_INLINE __m256 bytes_as_floats(__m128i bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

// The numbers that the codes of MXFP4 stand for, and 12 more.
FUSEWHEEL_INLINE __m128i mxfp4_table() {
  return _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
}

// Vector `v` of the codes of blocks of 32 weights, of which `live` are left. Behind the last block of a
// row its digits are zeros.
template <BlockKind kind>
FUSEWHEEL_INLINE Bytes small_codes(const uint8_t* blocks, int v, [[maybe_unused]] int64_t live) {
  constexpr bool has_fifth = kind == BlockKind::kQ5_0 || kind == BlockKind::kQ5_1;
  constexpr int bytes = block_format(kind).bytes;
  constexpr int codes = bytes - kBlockPart / 2;
  const uint8_t* block = blocks + v * kVectorParts * bytes;
  const auto pair = [](const uint8_t* of) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(of + codes));
  };
#if defined(__AVX512F__)
  const uint8_t* next = v * kVectorParts + 1 < live ? block + bytes : block;
  // Each block's bytes twice, first for the low halves and then for the high ones.
  const __m512i pairs = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(pair(block)), 0xff00,
                                                    pair(next));
  const __m512i counts = _mm512_setr_epi64(0, 0, 0x0004000400040004, 0x0004000400040004, 0, 0,
                                           0x0004000400040004, 0x0004000400040004);
  const __m512i low = _mm512_and_si512(_mm512_srlv_epi16(pairs, counts), _mm512_set1_epi8(15));
  if constexpr (has_fifth) {
    const uint64_t set = word_at(block + codes - 4) | uint64_t{word_at(next + codes - 4)} << 32;
    return bit_cast<Bytes>(
        _mm512_or_si512(low, _mm512_maskz_set1_epi8(static_cast<__mmask64>(set), 16)));
  } else if constexpr (kind == BlockKind::kMXFP4) {
    return bit_cast<Bytes>(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(mxfp4_table()), low));
  }
  return bit_cast<Bytes>(low);
#else
  const __m256i low = _mm256_and_si256(
      _mm256_inserti128_si256(_mm256_castsi128_si256(pair(block)), _mm_srli_epi16(pair(block), 4), 1),
      _mm256_set1_epi8(15));
  if constexpr (has_fifth) {
    // Each byte gets the byte that has its bit, then keeps this bit.
    const __m256i spread = _mm256_shuffle_epi8(
        _mm256_set1_epi32(static_cast<int>(word_at(block + codes - 4))),
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
    return bit_cast<Bytes>(_mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(16))));
  } else if constexpr (kind == BlockKind::kMXFP4) {
    return bit_cast<Bytes>(
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(mxfp4_table()), low));
  }
  return bit_cast<Bytes>(low);
#endif
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

// The float16 numbers at byte `at` of 8 blocks, of which `live` are left; zeros after these.
template <int bytes>
FUSEWHEEL_INLINE __m256 halves_at(const uint8_t* blocks, int at, int64_t live) {
#if defined(__AVX512F__)
  if (live >= 8) {
    return _mm256_cvtph_ps(eight_words<bytes>(blocks + at));
  }
#endif
  const auto half = [&](int i) {
    uint16_t number = 0;
    if (i < live) {
      __builtin_memcpy(&number, blocks + i * bytes + at, sizeof(number));
    }
    return static_cast<int16_t>(number);
  };
  return _mm256_cvtph_ps(_mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5),
                                        half(6), half(7)));
}

// The scales of blocks of 32 weights, likewise.
template <BlockKind kind>
FUSEWHEEL_INLINE __m256 small_scales(const uint8_t* blocks, int64_t live) {
  constexpr int bytes = block_format(kind).bytes;
  if constexpr (kind != BlockKind::kMXFP4) {
    return halves_at<bytes>(blocks, 0, live);
  } else {
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
    const auto power = [&](int i) { return i < live ? power_at(blocks + i * bytes) : 0.0f; };
    return _mm256_setr_ps(power(0), power(1), power(2), power(3), power(4), power(5), power(6),
                          power(7));
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
