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
  int32_t start[kSuperWeights / 4];                // of products, by what the codes are too much
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

// The sum of kSubWeights digits.
FUSEWHEEL_INLINE int16_t sum_of_digits(const int8_t* digits) {
  const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(digits));
  // Without their sign they are 128 more.
  const __m128i halves = _mm_sad_epu8(_mm_xor_si128(all, _mm_set1_epi8(-128)), _mm_setzero_si128());
  const int sum = _mm_cvtsi128_si32(halves) + _mm_extract_epi16(halves, 4);
  return static_cast<int16_t>(sum - 128 * kSubWeights);
}

// For codes that are `centre` too much.
FUSEWHEEL_INLINE void to_block_digits(const float* a, int64_t count, int planes, int centre,
                                      BlockDigits& to) {
  constexpr int vectors = kBlockPart / kLanes<float>;
  const float whole_steps = planes == 2 ? 32512.0f : 8323072.0f;
  const Rounding rounding = round_block(measure_super(a, count), whole_steps);
  to.step = rounding.step;
  int32_t whole_sums[kSuperWeights / 4];  // of four neighbouring elements, in steps
  for (int begin = 0; begin < kSuperWeights; begin += kBlockPart) {
    Integers whole[vectors] = {};
    for (int i = 0; i < vectors && begin < count; ++i) {
      whole[i] = nearest(load(a + begin + i * kLanes<float>) * rounding.inverse);
    }
    int32_t numbers[kBlockPart];
    __builtin_memcpy(numbers, whole, sizeof(numbers));
    for (int i = 0; i < kBlockPart; i += 4) {
      const int32_t four = numbers[i] + numbers[i + 1] + numbers[i + 2] + numbers[i + 3];
      whole_sums[(begin + i) / 4] = four;
      to.start[(begin + i) / 4] = -centre * four;
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
      to.sums[p][sub] = sum_of_digits(to.digits[p] + sub * kSubWeights);
    }
    int32_t total = 0;
    for (int i = 0; i < kSubWeights / 4; ++i) {
      total += whole_sums[sub * (kSubWeights / 4) + i];
    }
    to.subs[sub] = static_cast<float>(total) * rounding.step;
  }
  for (int part = 0; part < kSuperParts; ++part) {
    to.parts[part] = to.subs[2 * part] + to.subs[2 * part + 1];
  }
}

FUSEWHEEL_INLINE float sum_of_eight(__m256 value) {
  float lanes[8];
  _mm256_storeu_ps(lanes, value);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX2__
