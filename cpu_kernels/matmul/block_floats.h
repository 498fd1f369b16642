// One row of a times a weight in blocks whose codes are floating numbers or bytes with a sign. A block's
// products are added up before they are scaled, so that no weight is written.
#pragma once

#include "block_digits.h"

#if defined(__AVX2__)

namespace fusewheel::FUSEWHEEL_ISA {

constexpr bool has_float_codes(BlockKind kind) {
  return kind == BlockKind::kIQ4_NL || kind == BlockKind::kFP8;
}

// Whether some codes are numbers below 1.
constexpr bool has_fractions(BlockKind kind) {
  return kind == BlockKind::kNF4 || kind == BlockKind::kFP4 || kind == BlockKind::kFP8;
}

// Numbers of float8_e4m3fn as float16: their 7 lowest bits fit there, as a number 256 times smaller. NaN is
// all ones.
FUSEWHEEL_INLINE Vec<float> small_float8(const uint8_t* codes) {
#if defined(__AVX512F__)
  const __m256i code = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  const __m256i magnitude = _mm256_and_si256(_mm256_slli_epi16(code, 7), _mm256_set1_epi16(0x3f80));
  const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80));
  const __m256i sign = _mm256_and_si256(code, _mm256_set1_epi16(-0x8000));
  return bit_cast<Vec<float>>(
      _mm512_cvtph_ps(_mm256_or_si256(_mm256_or_si256(magnitude, sign), nan)));
#else
  const __m128i code = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  const __m128i magnitude = _mm_and_si128(_mm_slli_epi16(code, 7), _mm_set1_epi16(0x3f80));
  const __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x3f80));
  const __m128i sign = _mm_and_si128(code, _mm_set1_epi16(-0x8000));
  return bit_cast<Vec<float>>(_mm256_cvtph_ps(_mm_or_si128(_mm_or_si128(magnitude, sign), nan)));
#endif
}

// `count` blocks of a row times a.
template <BlockKind kind>
__attribute__((noinline)) Vec<float> dot_float_codes(const uint8_t* blocks, int64_t count,
                                                     const float* a) {
  constexpr BlockFormat format = block_format(kind);
  constexpr int lanes = kLanes<float>;
  constexpr bool is_half = kind == BlockKind::kIQ4_NL;
  [[maybe_unused]] const CodeTable<kind> table;
  const bool twice = choices().prefetch;
  Vec<float> total = {};
  for (int64_t block = 0; block < count; ++block, blocks += format.bytes, a += format.weights) {
    prefetch_blocks(blocks, format.bytes, twice);
    const uint8_t* codes = blocks + (is_half ? 2 : 4);
    Vec<float> sums[2] = {};
#pragma GCC unroll 2
    for (int part = 0; part < format.weights; part += kBlockPart) {
      if constexpr (kind == BlockKind::kFP8) {
#pragma GCC unroll 4
        for (int i = 0; i < kBlockPart; i += lanes) {
          sums[i / lanes % 2] += small_float8(codes + part + i) * load(a + part + i);
        }
      } else {
#pragma GCC unroll 2
        for (int i = 0; i < kBlockPart / 2; i += lanes) {
          const Integers pair = load_codes(codes + part / 2 + i);
          sums[0] += table.look_up(pair & 15) * load(a + part + i);
          sums[1] += table.look_up(pair >> 4) * load(a + part + kBlockPart / 2 + i);
        }
      }
    }
    const float scale = is_half ? half_at(blocks) : float_at(blocks);
    const float steps = kind == BlockKind::kFP8 ? 256.0f : 1.0f;
    total += (sums[0] + sums[1]) * steps * splat(scale);
  }
  return total;
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX2__
