// The codes of stored blocks as vectors of bytes, for block_row.h: those of kSuperWeights neighbouring
// weights, which share a step of a.
//
// Codes are not negative: w = (code - centre) * scale + offset. Four vectors are decoded together. They
// make two pairs: a lane of both vectors of a pair meets one scale, so that eight products are one sum.
// Hence the order of the codes, for which a is laid out: `element_of`.
#pragma once

#include <immintrin.h>

#include "blocks.h"
#include "simd/bytes.h"

namespace fusewheel::FUSEWHEEL_ISA {

constexpr int kSuperParts = 8;
constexpr int kSuperWeights = kSuperParts * kBlockPart;
constexpr int kCodeVectors = 4;
// How often four vectors are decoded.
constexpr int kCodeGroups = kSuperWeights / (kCodeVectors * kBytes);
// Neighbouring elements that stay together.
constexpr int kPiece = 8;
constexpr int kPieces = kBytes / kPiece;

constexpr bool has_sub_blocks(BlockKind kind) { return block_format(kind).weights == kSuperWeights; }

// Whether a kind's codes are small whole numbers, so that products of two bytes fit 16 bits.
constexpr bool has_small_codes(BlockKind kind) {
  return has_sub_blocks(kind) || kind == BlockKind::kQ4_0 || kind == BlockKind::kQ4_1 ||
         kind == BlockKind::kQ5_0 || kind == BlockKind::kQ5_1 || kind == BlockKind::kMXFP4;
}

constexpr bool has_two_bits(BlockKind kind) {
  return kind == BlockKind::kQ2_K || kind == BlockKind::kQ3_K;
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

// Weights that share a scale.
constexpr int scale_weights(BlockKind kind) {
  return has_two_bits(kind) || kind == BlockKind::kQ6_K ? kBlockPart / 2 : kBlockPart;
}

// The first element of a piece of vector `v` of group `group`.
constexpr int element_of(BlockKind kind, int group, int v, int piece) {
  const int lane = group * (kPieces / 2) + piece / 2;  // 16 bytes
  const int half = piece % 2;
  if (kind == BlockKind::kQ4_K || kind == BlockKind::kQ5_K) {
    return 64 * lane + 8 * half + 16 * v;
  }
  if (kind == BlockKind::kQ6_K) {
    return 128 * half + 16 * lane + 8 * (v % 2) + 64 * (v / 2);
  }
  if (has_two_bits(kind)) {
    return 128 * (lane / 2) + 16 * (lane % 2) + 32 * half + 8 * (v % 2) + 64 * (v / 2);
  }
  return 32 * lane + 8 * half + 16 * (v % 2) + 128 * (v / 2);
}

constexpr int scale_count(BlockKind kind) { return kSuperWeights / scale_weights(kind); }

// Which scale of kSuperWeights weights is the one at place `place`. With AVX2 those that the lower half of a
// pair of vectors meets lie in the lower half of a vector, and no scale has to cross it.
constexpr int scale_at(BlockKind kind, int place) {
  if (kBytes == 64) {
    return place;
  }
  const int half = place % 8 / 4;
  const int own = place % 4;
  return scale_count(kind) == 8
             ? element_of(kind, own % 2, own / 2 * 2, 2 * half) / kBlockPart
             : element_of(kind, own / 2, place / 8 * 2, 2 * half + own % 2) / (kBlockPart / 2);
}

typedef int64_t Longs __attribute__((vector_size(kBytes)));

// 16 or 32 bytes, again and again.
FUSEWHEEL_INLINE Bytes load_sixteen(const uint8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
#if defined(__AVX512F__)
  return bit_cast<Bytes>(_mm512_broadcast_i32x4(bytes));
#else
  return bit_cast<Bytes>(_mm256_broadcastsi128_si256(bytes));
#endif
}

FUSEWHEEL_INLINE Bytes load_shared(const uint8_t* from) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
#if defined(__AVX512F__)
  return bit_cast<Bytes>(_mm512_broadcast_i64x4(bytes));
#else
  return bit_cast<Bytes>(bytes);
#endif
}

// Bytes looked up in 16 others, those of the same lane of 16.
FUSEWHEEL_INLINE Bytes look_up(Bytes table, Bytes at) {
#if defined(__AVX512F__)
  return bit_cast<Bytes>(_mm512_shuffle_epi8(bit_cast<__m512i>(table), bit_cast<__m512i>(at)));
#else
  return bit_cast<Bytes>(_mm256_shuffle_epi8(bit_cast<__m256i>(table), bit_cast<__m256i>(at)));
#endif
}

// The first, or the second, eight bytes of each 16 of two vectors in turn.
template <bool second>
FUSEWHEEL_INLINE Bytes eights_of(Bytes a, Bytes b) {
  constexpr int longs = kBytes / 8;
  Longs lanes;
#pragma GCC unroll 8
  for (int i = 0; i < longs; ++i) {
    lanes[i] = i / 2 * 2 + (second ? 1 : 0) + (i % 2 == 0 ? 0 : longs);
  }
  return bit_cast<Bytes>(shuffle(bit_cast<Longs>(a), bit_cast<Longs>(b), lanes));
}

// Each eight bytes shifted by count(lane of 16, half). Bits of a byte's neighbour come in: mask them off.
template <typename Count>
FUSEWHEEL_INLINE Bytes shift_eights(Bytes bytes, Count count) {
#if defined(__AVX512F__)
  const Longs counts = {count(0, 0), count(0, 1), count(1, 0), count(1, 1),
                        count(2, 0), count(2, 1), count(3, 0), count(3, 1)};
  return bit_cast<Bytes>(_mm512_srlv_epi64(bit_cast<__m512i>(bytes), bit_cast<__m512i>(counts)));
#else
  const Longs counts = {count(0, 0), count(0, 1), count(1, 0), count(1, 1)};
  return bit_cast<Bytes>(_mm256_srlv_epi64(bit_cast<__m256i>(bytes), bit_cast<__m256i>(counts)));
#endif
}

FUSEWHEEL_INLINE Bytes shift_left(Bytes bytes, int count) {
  return bit_cast<Bytes>(bit_cast<Shorts>(bytes) << static_cast<int16_t>(count));
}

// The even, or the odd, sixteens of two vectors in a row.
template <bool odd>
FUSEWHEEL_INLINE Bytes sixteens_of(Bytes a, Bytes b) {
#if defined(__AVX512F__)
  return bit_cast<Bytes>(_mm512_shuffle_i32x4(bit_cast<__m512i>(a), bit_cast<__m512i>(b),
                                              odd ? 0xdd : 0x88));
#else
  return bit_cast<Bytes>(_mm256_permute2x128_si256(bit_cast<__m256i>(a), bit_cast<__m256i>(b),
                                                   odd ? 0x31 : 0x20));
#endif
}

FUSEWHEEL_INLINE uint32_t word_at(const uint8_t* from) {
  uint32_t word;
  __builtin_memcpy(&word, from, sizeof(word));
  return word;
}

// The codes of group `group` of a block of K-quants.
template <BlockKind kind>
FUSEWHEEL_INLINE void super_codes(const uint8_t* block, int group, Bytes* codes) {
  constexpr int lanes = kBytes / 16;
  const int first = group * lanes;  // lane of 16
  if constexpr (kind == BlockKind::kQ4_K || kind == BlockKind::kQ5_K) {
    constexpr bool has_fifth = kind == BlockKind::kQ5_K;
    const uint8_t* from = block + (has_fifth ? 48 : 16) + 2 * group * kBytes;
    const Bytes a = load_bytes(from);
    const Bytes b = load_bytes(from + kBytes);
    const Bytes pairs[2] = {sixteens_of<false>(a, b), sixteens_of<true>(a, b)};
#pragma GCC unroll 4
    for (int v = 0; v < kCodeVectors; ++v) {
      codes[v] = v < 2 ? low_half(pairs[v % 2]) : high_half(pairs[v % 2]);
      if constexpr (has_fifth) {
        const Bytes bit = shift_eights(load_sixteen(block + 16 + v % 2 * 16), [&](int lane, int) {
          return 2 * (first + lane) + v / 2;
        });
        codes[v] |= shift_left(bit & 1, 4);
      }
    }
  } else if constexpr (kind == BlockKind::kQ6_K) {
    const Bytes a = load_bytes(block + group * kBytes);
    const Bytes b = load_bytes(block + 64 + group * kBytes);
    const Bytes high = load_shared(block + 128);
    const Bytes next = load_shared(block + 160);
    const Bytes pairs[2] = {eights_of<false>(a, b), eights_of<true>(a, b)};
    const Bytes tops[2] = {eights_of<false>(high, next), eights_of<true>(high, next)};
#pragma GCC unroll 4
    for (int v = 0; v < kCodeVectors; ++v) {
      const Bytes top = shift_eights(v < 2 ? shift_left(tops[v % 2], 4) : tops[v % 2],
                                     [&](int lane, int) { return (first + lane) / 2 * 2; });
      codes[v] = (v < 2 ? low_half(pairs[v % 2]) : high_half(pairs[v % 2])) | (top & 0x30);
    }
  } else {
    constexpr bool has_third = kind == BlockKind::kQ3_K;
    const Bytes four = load_bytes(block + (has_third ? 32 : 16) + group * kBytes);
    const Bytes fours[2] = {eights_of<false>(four, four), eights_of<true>(four, four)};
#pragma GCC unroll 4
    for (int v = 0; v < kCodeVectors; ++v) {
      const auto part = [&](int half) { return half + v / 2 * 2; };
      codes[v] = shift_eights(fours[v % 2], [&](int, int half) { return 2 * part(half); }) & 3;
      if constexpr (has_third) {
        const Bytes shared = load_shared(block);
        const Bytes eights = v % 2 == 0 ? eights_of<false>(shared, shared)
                                        : eights_of<true>(shared, shared);
        const Bytes bit = shift_eights(eights, [&](int lane, int half) {
          return (first + lane) / 2 * 4 + part(half);
        });
        codes[v] |= shift_left(bit & 1, 2);
      }
    }
  }
}

// The numbers that the codes of MXFP4 stand for, and 12 more.
alignas(16) constexpr uint8_t kMXFP4[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                            12, 11, 10, 9,  8,  6,  4,  0};

// 16 where a bit is set; 16 bits for each lane of 16 stand at these places.
FUSEWHEEL_INLINE Bytes fifth_bits(const uint8_t* const* from, int at) {
  const auto word = [&](int lane) FUSEWHEEL_INLINED {
    uint16_t bits;
    __builtin_memcpy(&bits, from[lane] + at, sizeof(bits));
    return uint64_t{bits};
  };
#if defined(__AVX512F__)
  const uint64_t set = word(0) | word(1) << 16 | word(2) << 32 | word(3) << 48;
  return bit_cast<Bytes>(_mm512_maskz_set1_epi8(static_cast<__mmask64>(set), 16));
#else
  // Each byte gets the byte that has its bit, then keeps this bit.
  const __m128i both = _mm_set_epi64x(0, static_cast<int64_t>(word(0) | word(1) << 16));
  const __m256i spread = _mm256_shuffle_epi8(
      _mm256_broadcastsi128_si256(both),
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
  return bit_cast<Bytes>(_mm256_and_si256(set, _mm256_set1_epi8(16)));
#endif
}

// The first block of 32 weights in a pair of vectors of codes.
constexpr int first_block(int group, int pair) {
  return pair * (kSuperParts / 2) + group * (kBytes / 16);
}

// The codes of group `group` of blocks of 32 weights, of which `live` are left. Behind the last block of
// a row its digits are zeros.
template <BlockKind kind>
FUSEWHEEL_INLINE void small_codes(const uint8_t* blocks, int group, int64_t live, Bytes* codes) {
  constexpr bool has_fifth = kind == BlockKind::kQ5_0 || kind == BlockKind::kQ5_1;
  constexpr int bytes = block_format(kind).bytes;
  constexpr int at = bytes - kBlockPart / 2;
  constexpr int lanes = kBytes / 16;
#pragma GCC unroll 2
  for (int pair = 0; pair < 2; ++pair) {
    const uint8_t* from[lanes];
    for (int i = 0; i < lanes; ++i) {
      const int64_t block = first_block(group, pair) + i;
      from[i] = blocks + (block < live ? block : 0) * bytes;
    }
    const Bytes both = load_pieces(from, 1, at);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Bytes code = half == 0 ? low_half(both) : high_half(both);
      if constexpr (has_fifth) {
        code |= fifth_bits(from, at - 4 + 2 * half);
      } else if constexpr (kind == BlockKind::kMXFP4) {
        code = look_up(load_sixteen(kMXFP4), code);
      }
      codes[2 * pair + half] = code;
    }
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
