// One row of a against a weight in stored blocks, in integers. As digits.h, but for these:
// 256 neighbouring elements of a share a step, because the blocks of K-quants do; and digits stand in
// the order of the elements.
//
// The sub-blocks of K-quants have whole numbers for scales. So 256 products are summed as integers, and
// become a float once.
#pragma once

#include "digits.h"

#if defined(__AVX2__)

#include "block_codes.h"
#include "block_floats.h"

namespace fusewheel::FUSEWHEEL_ISA {

constexpr int kMostBlockDigits = 3;
// How far before a block its bytes are asked for.
constexpr int64_t kPrefetchAhead = 1024;
// Elements of a whose digits are summed for the centre of the codes.
constexpr int kSubWeights = 16;
constexpr int kSubs = kSuperWeights / kSubWeights;

// A row of a by digits, for each kSuperWeights elements.
struct alignas(64) BlockDigits {
  int8_t digits[kMostBlockDigits][kSuperWeights];  // the most significant first
  int16_t sums[kMostBlockDigits][kSubs];           // of the digits of each kSubWeights
  int32_t whole[kSuperWeights / 4];                // sums of four neighbouring elements, in steps
  float subs[kSubs];                               // sums of kSubWeights elements of a
  float parts[kSuperParts];                        // likewise of kBlockPart
  float step;
};

FUSEWHEEL_INLINE int64_t block_supers(int64_t columns) {
  return (columns + kSuperWeights - 1) / kSuperWeights;
}

// The magnitudes of up to kSuperWeights elements.
FUSEWHEEL_INLINE Block measure_super(const float* a, int64_t count) {
  Block all = {0, 0};
  for (int64_t i = 0; i < count; i += kBlockPart) {
    const Block one = measure_block(a + i);
    all.largest = one.largest > all.largest ? one.largest : all.largest;
    all.mean += one.mean * (static_cast<float>(kBlockPart) / static_cast<float>(count));
  }
  return all;
}

// As digits_for, over kSuperWeights elements.
FUSEWHEEL_INLINE int block_digits_for(const float* a, int64_t columns, Dtype dtype) {
  constexpr float kSmallest = 1e-30f;
  int digits = dtype == Dtype::kFloat32 ? 3 : 2;
  for (int64_t i = 0; i < columns; i += kSuperWeights) {
    const int64_t count = columns - i < kSuperWeights ? columns - i : kSuperWeights;
    const Block block = measure_super(a + i, count);
    if (!is_finite(block) || (block.largest > 0 && block.largest < kSmallest)) {
      return 0;
    }
    if (block.largest > 16 * block.mean) {
      digits = 3;
    }
  }
  return digits;
}

FUSEWHEEL_INLINE void to_block_digits(const float* a, int64_t count, int planes,
                                      BlockDigits& to) {
  constexpr int vectors = kBlockPart / kLanes<float>;
  const float whole_steps = planes == 2 ? 32512.0f : 8323072.0f;
  const Rounding rounding = round_block(measure_super(a, count), whole_steps);
  to.step = rounding.step;
  for (int begin = 0; begin < kSuperWeights; begin += kBlockPart) {
    Integers whole[vectors] = {};
    for (int i = 0; i < vectors && begin < count; ++i) {
      whole[i] = nearest(load(a + begin + i * kLanes<float>) * rounding.inverse);
    }
    int32_t numbers[kBlockPart];
    __builtin_memcpy(numbers, whole, sizeof(numbers));
    for (int i = 0; i < kBlockPart; i += 4) {
      to.whole[(begin + i) / 4] = numbers[i] + numbers[i + 1] + numbers[i + 2] + numbers[i + 3];
    }
    for (int p = planes; p-- > 0;) {
      Integers digits[vectors];
      for (int i = 0; i < vectors; ++i) {
        digits[i] = take_digit(whole[i]);
      }
      store_bytes(to.digits[p] + begin, digits);
    }
  }
  for (int sub = 0; sub < kSubs; ++sub) {
    for (int p = 0; p < planes; ++p) {
      int16_t sum = 0;
      for (int i = 0; i < kSubWeights; ++i) {
        sum = static_cast<int16_t>(sum + to.digits[p][sub * kSubWeights + i]);
      }
      to.sums[p][sub] = sum;
    }
    int32_t total = 0;
    for (int i = 0; i < kSubWeights / 4; ++i) {
      total += to.whole[sub * (kSubWeights / 4) + i];
    }
    to.subs[sub] = static_cast<float>(total) * rounding.step;
  }
  for (int part = 0; part < kSuperParts; ++part) {
    to.parts[part] = to.subs[2 * part] + to.subs[2 * part + 1];
  }
}

// Sums of neighbouring products of 16-bit numbers.
FUSEWHEEL_INLINE Integers multiply_add_pairs(Shorts a, Shorts b) {
#if defined(__AVX512F__)
  return bit_cast<Integers>(_mm512_madd_epi16(bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#else
  return bit_cast<Integers>(_mm256_madd_epi16(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
#endif
}

// A float16 number, by the instruction for it.
FUSEWHEEL_INLINE float converted_half(const uint8_t* at) {
  uint16_t bits;
  __builtin_memcpy(&bits, at, sizeof(bits));
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

// Words of 4 bytes, each in `lanes` neighbouring lanes.
template <int lanes>
FUSEWHEEL_INLINE Integers spread_words(const void* from) {
  Integers lane;
  for (int i = 0; i < kLanes<float>; ++i) {
    lane[i] = i / lanes;
  }
#if defined(__AVX512F__)
  const __m128i words = lanes == 4 ? _mm_loadu_si128(static_cast<const __m128i*>(from))
                                   : _mm_loadl_epi64(static_cast<const __m128i*>(from));
  return bit_cast<Integers>(
      _mm512_permutexvar_epi32(bit_cast<__m512i>(lane), _mm512_castsi128_si512(words)));
#else
  if constexpr (lanes == 8) {
    int32_t word;
    __builtin_memcpy(&word, from, sizeof(word));
    return word - Integers{};
  }
  const __m128i words = _mm_loadl_epi64(static_cast<const __m128i*>(from));
  return bit_cast<Integers>(
      _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(words), bit_cast<__m256i>(lane)));
#endif
}

// 8 whole numbers in the first lanes, zeros in the others.
FUSEWHEEL_INLINE Integers first_lanes(__m256i eight) {
#if defined(__AVX512F__)
  return bit_cast<Integers>(_mm512_zextsi256_si512(eight));
#else
  return bit_cast<Integers>(eight);
#endif
}

FUSEWHEEL_INLINE float sum_of_eight(__m256 value) {
  float lanes[8];
  _mm256_storeu_ps(lanes, value);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
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

// A row of K-quants times a.
template <BlockKind kind, int planes>
FUSEWHEEL_INLINE float dot_supers(const uint8_t* block, int64_t supers, const BlockDigits* a) {
  constexpr int bytes = block_format(kind).bytes;
  constexpr int centre = centre_of(kind);
  constexpr int scale_at = kind == BlockKind::kQ2_K ? 80 : kind == BlockKind::kQ3_K ? 108
                           : kind == BlockKind::kQ6_K ? 208 : 0;
  Vec<float> total = {};
  __m256 offsets = _mm256_setzero_ps();
  for (; supers-- > 0; block += bytes, ++a) {
    prefetch(block, kPrefetchAhead, bytes);
    const __m128i stored = super_scales<kind>(block);
    const __m256i scales = _mm256_cvtepi8_epi16(stored);
    // Each scale twice in a lane, for the two numbers that one instruction adds up.
    alignas(64) int16_t pairs[2 * kSubs];
    _mm256_store_si256(reinterpret_cast<__m256i*>(pairs),
                       _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(stored, stored)));
    _mm256_store_si256(reinterpret_cast<__m256i*>(pairs + kSubs),
                       _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(stored, stored)));
    Integers sums[planes];
#pragma GCC unroll 3
    for (int p = 0; p < planes; ++p) {
      const __m256i own = _mm256_madd_epi16(
          scales, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a->sums[p])));
      sums[p] = -(first_lanes(own) * centre);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kSuperParts / kVectorParts; ++v) {
      const Bytes codes = super_codes<kind>(block, v);
      const Shorts scale =
          bit_cast<Shorts>(spread_words<4>(pairs + v * (kBytes / kSubWeights) * 2));
#pragma GCC unroll 3
      for (int p = 0; p < planes; ++p) {
        const Shorts products = multiply_pairs(codes, load_bytes(a->digits[p] + v * kBytes));
        sums[p] += multiply_add_pairs(products, scale);
      }
    }
    const float scale = converted_half(block + scale_at);
    total += join<planes>(sums) * splat(scale * a->step);
    if constexpr (kind == BlockKind::kQ4_K || kind == BlockKind::kQ5_K) {
      const uint32_t second = word_at(block + 8);
      const uint32_t last = word_at(block + 12);
      const __m128i minima =
          two_words(second & 0x3f3f3f3f,
                    (last >> 4 & 0x0f0f0f0f) | (second >> 6 & 0x03030303) << 4);
      const __m128i evens = _mm_shuffle_epi8(
          stored, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, -1, -1, -1, -1, -1, -1, -1, -1));
      const __m256 offset =
          bytes_as_floats(evens) * (scale * centre) - bytes_as_floats(minima) * converted_half(block + 2);
      offsets += offset * _mm256_loadu_ps(a->parts);
    } else if constexpr (kind == BlockKind::kQ2_K) {
      const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block));
      const __m128i minima = _mm_and_si128(_mm_srli_epi16(both, 4), _mm_set1_epi8(15));
      const float minimum = converted_half(block + 82);
      const auto add = [&](__m128i own, __m128i least, const float* by) {
        const __m256 offset =
            bytes_as_floats(own) * (scale * centre) - bytes_as_floats(least) * minimum;
        offsets += offset * _mm256_loadu_ps(by);
      };
      add(stored, minima, a->subs);
      add(_mm_srli_si128(stored, 8), _mm_srli_si128(minima, 8), a->subs + 8);
    }
  }
  return sum<float>(total) + sum_of_eight(offsets);
}

// A row of blocks of 32 weights times a. Each has a scale of its own, so that its products become
// floats apart.
template <BlockKind kind, int planes>
FUSEWHEEL_INLINE float dot_small(const uint8_t* blocks, int64_t parts, const BlockDigits* a) {
  constexpr int bytes = block_format(kind).bytes;
  constexpr int centre = centre_of(kind);
  Vec<float> total = {};
  __m256 offsets = _mm256_setzero_ps();
  for (; parts > 0; parts -= kSuperParts, blocks += kSuperParts * bytes, ++a) {
    prefetch(blocks, kPrefetchAhead, kSuperParts * bytes);
    const __m256 own = small_scales<kind>(blocks, parts);
    alignas(64) float scales[kSuperParts];
    _mm256_store_ps(scales, own * a->step);
    const int64_t live = parts < kSuperParts ? parts : kSuperParts;
    const auto step = [&](int v) {
      const Bytes codes = small_codes<kind>(blocks, v, live);
      Integers sums[planes];
#pragma GCC unroll 3
      for (int p = 0; p < planes; ++p) {
        sums[p] = add_pairs(multiply_pairs(codes, load_bytes(a->digits[p] + v * kBytes)));
      }
      Integers whole = sums[0];
#pragma GCC unroll 2
      for (int p = 1; p < planes; ++p) {
        whole = (whole << 8) + sums[p];
      }
      Integers middle;
      __builtin_memcpy(&middle, a->whole + v * kLanes<float>, sizeof(middle));
      const Vec<float> scale = bit_cast<Vec<float>>(spread_words<8>(scales + v * kVectorParts));
      total += __builtin_convertvector(whole - middle * centre, Vec<float>) * scale;
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
      offsets += (minima + own * static_cast<float>(centre)) * _mm256_loadu_ps(a->parts);
    }
  }
  return sum<float>(total) + sum_of_eight(offsets);
}

// A row of Q8_0 times a, in floats: products of two bytes with a sign have no quick instruction.
__attribute__((noinline)) inline float dot_bytes(const uint8_t* blocks, int64_t parts,
                                                 const float* a) {
  constexpr int bytes = block_format(BlockKind::kQ8_0).bytes;
  constexpr int vectors = kBlockPart / kLanes<float>;
  Vec<float> totals[2] = {};
  for (int64_t part = 0; part < parts; ++part, blocks += bytes, a += kBlockPart) {
    __builtin_prefetch(blocks + kPrefetchAhead);
    Vec<float> own = {};
#pragma GCC unroll 4
    for (int i = 0; i < vectors; ++i) {
      const auto* codes = reinterpret_cast<const int8_t*>(blocks + 2) + i * kLanes<float>;
      own += from_codes(load_codes(codes)) * load(a + i * kLanes<float>);
    }
    totals[part % 2] += own * splat(converted_half(blocks));
  }
  return sum<float>(totals[0] + totals[1]);
}

template <BlockKind kind, int planes>
__attribute__((noinline)) float dot_block_row(const uint8_t* row, int64_t columns,
                                              const BlockDigits* a) {
  if constexpr (has_sub_blocks(kind)) {
    return dot_supers<kind, planes>(row, columns / kSuperWeights, a);
  } else {
    return dot_small<kind, planes>(row, columns / kBlockPart, a);
  }
}

// `count` rows of the weight from `begin`, one after another: blocks lie in one stream.
FUSEWHEEL_INLINE void dot_blocks(const LinearWeight& weight, int64_t begin, int64_t count,
                                 const float* floats, const BlockDigits* a, int planes,
                                 float* out) {
  const uint8_t* row = static_cast<const uint8_t*>(weight.data) + begin * weight.stride;
  if (weight.blocks.kind == BlockKind::kQ8_0) {
    for (int64_t r = 0; r < count; ++r, row += weight.stride) {
      out[r] = dot_bytes(row, weight.columns / kBlockPart, floats);
    }
    return;
  }
  for_block_kind(weight.blocks.kind, [&](auto decoder) {
    constexpr BlockKind kind = decltype(decoder)::kKind;
    if constexpr (has_float_codes(kind)) {
      for (int64_t r = 0; r < count; ++r, row += weight.stride) {
        out[r] = dot_float_codes<kind>(row, weight.columns / decltype(decoder)::kWeights, floats);
      }
    } else if constexpr (has_small_codes(kind)) {
      for (int64_t r = 0; r < count; ++r, row += weight.stride) {
        out[r] = planes == 2 ? dot_block_row<kind, 2>(row, weight.columns, a)
                             : dot_block_row<kind, 3>(row, weight.columns, a);
      }
    }
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX2__
