// One row of a times a weight in blocks whose 4-bit codes are looked up in a table of numbers, which
// registers hold. A block's products are added up before they are scaled, so that no weight is written. The
// elements of a are laid out before, in the order in which numbers come out.
#pragma once

#include "block_digits.h"

#if defined(__AVX2__)

namespace fusewheel::FUSEWHEEL_ISA {

// Whether a kind goes this way. With AVX-512 a code of IQ4_NL is widened and looked up as a float.
constexpr bool looks_up(BlockKind kind) {
  return kind == BlockKind::kNF4 || kind == BlockKind::kFP4 ||
         (kind == BlockKind::kIQ4_NL && kBytes == 32);
}

#if defined(__AVX512F__)

// Codes are looked up as they lie in words of 32 bits: they are only shifted and not widened.
constexpr int kWords = 16;
constexpr int kWordCodes = 8;
// Blocks whose codes fill a vector of words.
constexpr int kWordBlocks = 2;
constexpr int kTogether = kWords * kWordCodes;

// Element [code][word] of each kTogether elements; zeros after the last. Words of a block hold 16 low
// halves and 16 high halves of its first part, and then those of its second.
template <BlockKind>
FUSEWHEEL_INLINE void order_for_table(const float* a, int64_t columns, float* to) {
  for (int64_t begin = 0; begin < columns; begin += kTogether, to += kTogether) {
    for (int code = 0; code < kWordCodes; ++code) {
      for (int word = 0; word < kWords; ++word) {
        const int byte = word % 4 * 4 + code / 2;
        const int64_t from = begin + word / 4 * kBlockPart + code % 2 * (kBlockPart / 2) + byte;
        to[code * kWords + word] = from < columns ? a[from] : 0.0f;
      }
    }
  }
}

// `count` blocks of a row times the elements of a in that order.
template <BlockKind kind>
__attribute__((noinline)) Vec<float> dot_table(const uint8_t* blocks, int64_t count,
                                               const float* a) {
  constexpr int bytes = block_format(kind).bytes;
  constexpr __mmask16 second = 0xff00;
  const CodeTable<kind> table;
  const bool twice = choices().prefetch;
  Vec<float> total = {};
  for (int64_t block = 0; block < count; block += kWordBlocks, a += kTogether) {
    prefetch_blocks(blocks, kWordBlocks * bytes, twice);
    // Behind the last block a is zeros.
    const uint8_t* next = block + 1 < count ? blocks + bytes : blocks;
    const auto codes = [](const uint8_t* of) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(of + sizeof(float)));
    };
    const __m512i words = _mm512_mask_broadcast_i32x8(_mm512_castsi256_si512(codes(blocks)), second,
                                                      codes(next));
    Vec<float> sums[2] = {};
#pragma GCC unroll 8
    for (int code = 0; code < kWordCodes; ++code) {
      const __m512i code_first = _mm512_srli_epi32(words, 4 * code);
      sums[code % 2] += table.look_up(bit_cast<Integers>(code_first)) * load(a + code * kWords);
    }
    const __m512 scale = _mm512_mask_broadcastss_ps(_mm512_set1_ps(float_at(blocks)), second,
                                                    _mm_load_ss(reinterpret_cast<const float*>(next)));
    total += (sums[0] + sums[1]) * bit_cast<Vec<float>>(scale);
    blocks += kWordBlocks * bytes;
  }
  return total;
}

#else

// Numbers are looked up a byte at a time, because one instruction looks up 32 bytes and two look up 8 floats;
// then bytes are woven to words of 16 bits, and these to floats.

// Elements whose codes fill a vector of bytes: two parts.
constexpr int kTogether = 2 * kBlockPart;

// Bytes of the numbers that are looked up, the most significant ones. Those of IQ4_NL end with zeros.
template <BlockKind kind>
constexpr int kNumberBytes = kind == BlockKind::kIQ4_NL ? 2 : 4;

template <BlockKind kind>
struct ByteTable {
  Bytes planes[4];

  FUSEWHEEL_INLINE ByteTable() {
#pragma GCC unroll 32
    for (int i = 0; i < kBytes; ++i) {
      const float number = BlockTable<kind>::at(i % 16);
      uint32_t bits;
      __builtin_memcpy(&bits, &number, sizeof(bits));
#pragma GCC unroll 4
      for (int plane = 0; plane < 4; ++plane) {
        planes[plane][i] = static_cast<int8_t>(bits >> (8 * plane));
      }
    }
  }

  // The numbers of 32 codes, in four vectors.
  FUSEWHEEL_INLINE void look_up(Bytes codes, Vec<float>* to) const {
    const auto plane = [&](int i) {
      return _mm256_shuffle_epi8(bit_cast<__m256i>(planes[i]), bit_cast<__m256i>(codes));
    };
    const __m256i upper[2] = {_mm256_unpacklo_epi8(plane(2), plane(3)),
                              _mm256_unpackhi_epi8(plane(2), plane(3))};
    if constexpr (kNumberBytes<kind> == 2) {
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        to[2 * i] = bit_cast<Vec<float>>(_mm256_slli_epi32(upper[i], 16));
        to[2 * i + 1] =
            bit_cast<Vec<float>>(_mm256_and_si256(upper[i], _mm256_set1_epi32(-0x10000)));
      }
    } else {
      const __m256i lower[2] = {_mm256_unpacklo_epi8(plane(0), plane(1)),
                                _mm256_unpackhi_epi8(plane(0), plane(1))};
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        to[2 * i] = bit_cast<Vec<float>>(_mm256_unpacklo_epi16(lower[i], upper[i]));
        to[2 * i + 1] = bit_cast<Vec<float>>(_mm256_unpackhi_epi16(lower[i], upper[i]));
      }
    }
  }
};

// Which of 16 codes in a row is that of lane `lane`, of four, of vector `v`.
template <BlockKind kind>
constexpr int looked_up(int v, int lane) {
  return kNumberBytes<kind> == 2 ? 8 * (v / 2) + 2 * lane + v % 2 : 4 * v + lane;
}

// The elements of a in this order, zeros after the last: of each kTogether the low halves of both parts,
// then the high halves.
template <BlockKind kind>
FUSEWHEEL_INLINE void order_for_table(const float* a, int64_t columns, float* to) {
  constexpr int lanes = kLanes<float>;
  for (int64_t begin = 0; begin < columns; begin += kTogether) {
    for (int v = 0; v < kTogether / lanes; ++v) {
      for (int lane = 0; lane < lanes; ++lane, ++to) {
        const int64_t from = begin + lane / 4 * kBlockPart + v / 4 * (kBlockPart / 2) +
                             looked_up<kind>(v % 4, lane % 4);
        *to = from < columns ? a[from] : 0.0f;
      }
    }
  }
}

// The codes of kTogether weights, and the scale of each lane; `pair` says whether there is a second block.
template <BlockKind kind>
struct TableCodes {
  Bytes codes;
  Vec<float> scale;

  FUSEWHEEL_INLINE TableCodes(const uint8_t* blocks, bool pair) {
    if constexpr (block_format(kind).weights == kTogether) {
      codes = load_bytes(blocks + sizeof(float));
      scale = splat(float_at(blocks));
    } else {
      constexpr int bytes = block_format(kind).bytes;
      constexpr int at = bytes - kBlockPart / 2;
      const uint8_t* second = pair ? blocks + bytes : blocks;
      const uint8_t* const from[2] = {blocks, second};
      codes = load_pieces(from, 1, at);
      const auto half = [](const uint8_t* block) {
        int16_t bits;
        __builtin_memcpy(&bits, block, sizeof(bits));
        return _mm_set1_epi16(bits);
      };
      const __m128i other = pair ? half(second) : _mm_setzero_si128();
      scale = bit_cast<Vec<float>>(_mm256_cvtph_ps(_mm_unpacklo_epi64(half(blocks), other)));
    }
  }
};

// `count` blocks of a row times the elements of a in that order.
template <BlockKind kind>
__attribute__((noinline)) Vec<float> dot_table(const uint8_t* blocks, int64_t count,
                                               const float* a) {
  constexpr int lanes = kLanes<float>;
  constexpr int together = kTogether / block_format(kind).weights;
  constexpr int bytes = together * block_format(kind).bytes;
  const ByteTable<kind> table;
  const bool twice = choices().prefetch;
  Vec<float> total = {};
  const auto add = [&](bool pair) {
    const TableCodes<kind> own(blocks, pair);
    Vec<float> sums[2] = {};
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Vec<float> numbers[4];
      table.look_up(half == 0 ? low_half(own.codes) : high_half(own.codes), numbers);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        sums[half] += numbers[v] * load(a + (4 * half + v) * lanes);
      }
    }
    total += (sums[0] + sums[1]) * own.scale;
  };
  for (; count >= together; count -= together, blocks += bytes, a += kTogether) {
    prefetch_blocks(blocks, bytes, twice);
    add(true);
  }
  if (count > 0) {
    add(false);
  }
  return total;
}

#endif  // __AVX512F__

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX2__
