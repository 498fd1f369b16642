// Blocks of activations as whole numbers of a step.
#pragma once

#include "simd/bytes.h"
#include "decode.h"

namespace fusewheel::FUSEWHEEL_ISA {

constexpr float kLargestFloat = 3.4028235e38f;

// The magnitudes of a block of kInt4Block elements.
struct Block {
  float largest;
  float mean;
};

// By lanes, into vectors of zeros.
FUSEWHEEL_INLINE void measure_block(const float* a, Vec<float>& largest, Vec<float>& mean) {
  for (int j = 0; j < kInt4Block; j += kLanes<float>) {
    const Vec<float> value = load(a + j);
    const Vec<float> magnitude = value < 0 ? -value : value;
    largest = magnitude > largest ? magnitude : largest;
    mean += magnitude * (1.0f / kInt4Block);  // a sum could overflow
  }
}

FUSEWHEEL_INLINE Block measure_block(const float* a) {
  Vec<float> largest = {};
  Vec<float> mean = {};
  measure_block(a, largest, mean);
  return {max<float>(largest), sum<float>(mean)};
}

// Of a group of any size.
FUSEWHEEL_INLINE Block measure_group(const float* a, int64_t size) {
  Vec<float> largest = {};
  Vec<float> mean = {};
  const float share = 1 / static_cast<float>(size);
  for_each_vector<float>(size, [&](int64_t i, int64_t live) {
    const Vec<float> value = load(a + i, live);
    const Vec<float> magnitude = value < 0 ? -value : value;
    largest = magnitude > largest ? magnitude : largest;
    mean += magnitude * share;  // a sum could overflow
  });
  return {max<float>(largest), sum<float>(mean)};
}

// Whether a block is so small that its step, or its products with codes, are not normal numbers.
FUSEWHEEL_INLINE bool is_tiny(const Block& block) {
  return block.largest > 0 && block.largest < 1e-30f;
}

// False with an infinity or NaN.
FUSEWHEEL_INLINE bool is_finite(const Block& block) { return block.mean <= kLargestFloat; }

struct Rounding {
  float step;
  float inverse;  // 0 where nothing is to be rounded: all whole numbers are zeros
};

// The largest element becomes `steps` steps. A block that is not finite has step NaN; one of zeros,
// or of numbers so small that they vanish beside any weight, becomes zeros. So do the whole numbers of one
// that is not finite: the processor's for NaN is so large that sums of it overflow.
FUSEWHEEL_INLINE Rounding round_block(const Block& block, float steps) {
  const float inverse = steps / block.largest;
  return {is_finite(block) ? block.largest / steps : __builtin_nanf(""),
          inverse > kLargestFloat || !is_finite(block) ? 0 : inverse};
}

// The same for a block a lane.
struct Roundings {
  Vec<float> step;
  Vec<float> inverse;
};

FUSEWHEEL_INLINE Roundings round_blocks(Vec<float> largest, Vec<float> mean, float steps) {
  const Vec<float> inverse = splat(steps) / largest;
  const auto finite = mean <= kLargestFloat;
  const Vec<float> rounded = inverse > kLargestFloat ? Vec<float>{} : inverse;
  return {finite ? largest / splat(steps) : splat(__builtin_nanf("")),
          finite ? rounded : Vec<float>{}};
}

}  // namespace fusewheel::FUSEWHEEL_ISA
