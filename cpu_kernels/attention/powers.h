// Scores as exponents of 2: with AVX-512 a power takes fewer instructions than an exponential.
#pragma once

#include "tiles.h"

#if defined(__AVX512F__)

namespace fusewheel::FUSEWHEEL_ISA {

// 2^x, for x that are not far above 0. The minimax polynomial of degree 6 for its fraction is off by
// less than one unit in the last place, and exact for 0.
FUSEWHEEL_INLINE Vec<float> exp2(Vec<float> x) {
  constexpr int kDown = 9;  // what is left of the next whole number below
  const Vec<float> f = bit_cast<Vec<float>>(_mm512_reduce_ps(bit_cast<__m512>(x), kDown));
  Vec<float> p = splat(2.1612919e-4f);
  p = p * f + 1.24678458e-3f;
  p = p * f + 9.67545155e-3f;
  p = p * f + 5.54852821e-2f;
  p = p * f + 2.40229309e-1f;
  p = p * f + 6.9314706e-1f;
  p = p * f + 1.0f;
  return bit_cast<Vec<float>>(_mm512_scalef_ps(bit_cast<__m512>(p), bit_cast<__m512>(x)));
}

constexpr double kLog2E = 1.44269504088896341;
constexpr double kLn2 = 0.69314718055994530942;

// How scores become exponents of 2.
struct Exponent {
  // Scores are multiplied by the scale in memory first: for a bias that is added, or a soft cap.
  bool natural;
  float scale;
  float factor;  // what is left to multiply by, positive

  FUSEWHEEL_INLINE explicit Exponent(const AttentionArgs& args) {
    const auto& shape = args.shape;
    scale = static_cast<float>(shape.scale);
    factor = static_cast<float>(shape.scale * kLog2E);
    natural = (args.bias.data != nullptr && !shape.is_mask) || shape.softcap > 0 ||
              !(factor > 1e-30f) || !(factor < 1e30f);
    if (natural) {
      factor = static_cast<float>(kLog2E);
    }
  }

  // Columns [begin, end) of scores.
  FUSEWHEEL_INLINE void apply(float* scores, int64_t begin, int64_t end) const {
    for (int64_t j = begin; natural && j < end; j += kLanes<float>) {
      store(scores + j, load(scores + j) * scale);
    }
  }
};

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX512F__
