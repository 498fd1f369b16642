// A stretch of one row of a weight that is stored in blocks, rounded to bfloat16.
#pragma once

#include "bfloat16_tile.h"
#include "blocks.h"

#if defined(__AVX512F__)

namespace fusewheel::FUSEWHEEL_ISA {

// Whether weights that share a scale have codes of 4 bits.
constexpr bool has_four_bits(BlockKind kind) {
  return has_table(kind) || kind == BlockKind::kQ4_0 || kind == BlockKind::kQ4_1 ||
         kind == BlockKind::kQ4_K;
}

// The sixteen numbers that the codes of part `part` of a block stand for.
template <BlockKind kind>
FUSEWHEEL_INLINE Vec<float> sixteen_numbers(const uint8_t* block, [[maybe_unused]] int part) {
  if constexpr (has_table(kind)) {
    const float scale = kind == BlockKind::kIQ4_NL  ? converted_half(block)
                        : kind == BlockKind::kMXFP4 ? power_at(block)
                                                    : float_at(block);
    return CodeTable<kind>().numbers[0] * scale;
  } else {
    Vec<float> codes;
    for (int i = 0; i < 16; ++i) {
      codes[i] = static_cast<float>(kind == BlockKind::kQ4_0 ? i - 8 : i);
    }
    if constexpr (kind == BlockKind::kQ4_0) {
      return codes * converted_half(block);
    } else if constexpr (kind == BlockKind::kQ4_1) {
      return codes * converted_half(block) + converted_half(block + 2);
    } else {
      static_assert(kind == BlockKind::kQ4_K, "every kind of 4 bits has its numbers");
      const ScaleAndMinimum own = scale_and_minimum(block + 4, part);
      return codes * (converted_half(block) * static_cast<float>(own.scale)) -
             converted_half(block + 2) * static_cast<float>(own.minimum);
    }
  }
}

// The codes of part `part` of a block, one in each byte.
template <BlockKind kind>
FUSEWHEEL_INLINE __m256i codes_of_part(const uint8_t* block, int part) {
  const __m256i four_bits = _mm256_set1_epi8(15);
  if constexpr (kind == BlockKind::kQ4_K) {
    const auto* from = reinterpret_cast<const __m256i*>(block + 16 + part / 2 * kBlockPart);
    return _mm256_and_si256(_mm256_srli_epi16(_mm256_loadu_si256(from), part % 2 * 4), four_bits);
  } else {
    constexpr BlockFormat format = block_format(kind);
    constexpr int first = format.bytes - format.weights / 2;  // behind the scales
    const __m128i pairs = _mm_loadu_si128(
        reinterpret_cast<const __m128i*>(block + first + part * (kBlockPart / 2)));
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(pairs, 4), pairs), four_bits);
  }
}

// Elements [begin, begin + count) of a row, both multiples of kBlockPart. Of 4-bit codes each number that
// they stand for is rounded once a part, and looked up.
FUSEWHEEL_AMX inline __attribute__((noinline)) void decode_rounded(const LinearWeight& weight,
                                                                   int64_t row, int64_t begin,
                                                                   int64_t count, BFloat16* to) {
  const uint8_t* start = static_cast<const uint8_t*>(weight.data) + row * weight.stride;
  for_block_kind(weight.blocks.kind, [&](auto decoder) FUSEWHEEL_AMX {
    using Decoder = decltype(decoder);
    for (int64_t i = 0; i < count; i += kBlockPart) {
      const int64_t k = begin + i;
      const uint8_t* block = start + k / Decoder::kWeights * Decoder::kBytes;
      const int part = static_cast<int>(k % Decoder::kWeights / kBlockPart);
      if constexpr (has_four_bits(Decoder::kKind)) {
        const Vec<float> numbers = sixteen_numbers<Decoder::kKind>(block, part);
        const __m256i rounded_numbers = bit_cast<__m256i>(_mm512_cvtneps_pbh(bit_cast<__m512>(numbers)));
        const __m512i places = _mm512_cvtepu8_epi16(codes_of_part<Decoder::kKind>(block, part));
        const __m512i found =
            _mm512_permutexvar_epi16(places, _mm512_castsi256_si512(rounded_numbers));
        _mm512_storeu_si512(to + i, found);
      } else {
        Vec<float> numbers[kBlockPart / kLanes<float>];
        decode_part<Decoder>(block, part, reinterpret_cast<float*>(numbers));
        _mm512_storeu_si512(to + i, rounded(numbers[0], numbers[1]));
      }
    }
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX512F__
