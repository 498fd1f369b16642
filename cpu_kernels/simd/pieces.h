// Functions with f(x) + f(-x) = 1 that fall to 0 on the left. They are polynomials by pieces, whose
// coefficients a permutation of lanes picks: no exponential and no division.
#pragma once

#include "constants.h"
#include "math.h"

namespace fusewheel::FUSEWHEEL_ISA {

// As many as a register has lanes, so that one permutation picks a coefficient.
constexpr int kPieces = kLanes<float> < 8 ? 8 : kLanes<float>;

// Function::left(a) is f(-a). Piece p is around a = p * width; the last is 0, as the function is from
// Function::kFlat on.
template <typename Function>
struct Pieces {
  static constexpr int kDegree = Function::kDegree + (kPieces == 8 ? 2 : 0);
  // A float, so that the pieces are exactly where the kernel looks for them.
  static constexpr auto kWidth = static_cast<float>(Function::kFlat / (kPieces - 1.5));

  alignas(64) float coefficients[kDegree + 1][kPieces];

  constexpr Pieces() : coefficients() {
    for (int piece = 0; piece < kPieces - 1; ++piece) {
      interpolate(piece);
    }
  }

 private:
  // The polynomial through the function's values at the Chebyshev nodes of a piece.
  constexpr void interpolate(int piece) {
    double node[kDegree + 1] = {};
    double difference[kDegree + 1] = {};
    for (int k = 0; k <= kDegree; ++k) {
      constexpr double kPi = 3.14159265358979323846;
      node[k] = constants::cos(kPi * (k + 0.5) / (kDegree + 1)) * (kWidth / 2.0);
      difference[k] = Function::left(piece * static_cast<double>(kWidth) + node[k]);
    }
    for (int order = 1; order <= kDegree; ++order) {
      for (int k = kDegree; k >= order; --k) {
        difference[k] = (difference[k] - difference[k - 1]) / (node[k] - node[k - order]);
      }
    }
    // Newton's form, multiplied out from the innermost factor.
    double power[kDegree + 1] = {};
    for (int k = kDegree; k >= 0; --k) {
      for (int i = kDegree; i > 0; --i) {
        power[i] = power[i - 1] - node[k] * power[i];
      }
      power[0] = difference[k] - node[k] * power[0];
    }
    for (int i = 0; i <= kDegree; ++i) {
      coefficients[i][piece] = static_cast<float>(power[i]);
    }
  }
};

template <typename Function>
constexpr Pieces<Function> kPiecesOf;

// Lane by lane, the coefficient that the low bits of `piece` choose.
FUSEWHEEL_INLINE Vec<float> pick(const float (&coefficients)[kPieces], Vec<float> piece) {
#if defined(__AVX512F__)
  return bit_cast<Vec<float>>(
      _mm512_permutexvar_ps(bit_cast<__m512i>(piece), _mm512_load_ps(coefficients)));
#elif defined(__AVX2__)
  return bit_cast<Vec<float>>(
      _mm256_permutevar8x32_ps(_mm256_load_ps(coefficients), bit_cast<__m256i>(piece)));
#elif defined(__aarch64__)
  // Of bytes: the four of each coefficient stand side by side.
  const Bits first = (bit_cast<Bits>(piece) % kPieces) * 4;
  const Bits bytes = first * 0x01010101 + 0x03020100;
  const auto* table = reinterpret_cast<const uint8_t*>(coefficients);
  return bit_cast<Vec<float>>(
      vqtbl2q_u8({vld1q_u8(table), vld1q_u8(table + 16)}, bit_cast<uint8x16_t>(bytes)));
#else
  const Bits index = bit_cast<Bits>(piece) % kPieces;
  Vec<float> picked;
  for (int lane = 0; lane < kLanes<float>; ++lane) {
    picked[lane] = coefficients[index[lane]];
  }
  return picked;
#endif
}

template <typename Function>
FUSEWHEEL_INLINE Vec<float> by_pieces(Vec<float> x) {
  using Table = Pieces<Function>;
  constexpr float kWidth = Table::kWidth;
  constexpr float kLast = kWidth * (kPieces - 1);
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the integer is in the low bits of the sum
  const auto& coefficients = kPiecesOf<Function>.coefficients;
  Vec<float> a = magnitude(x);
  a = a > kLast ? splat(kLast) : a;
  const Vec<float> piece = a * (1 / kWidth) + kRound;
  const Vec<float> rest = a - (piece - kRound) * kWidth;
  Vec<float> left = pick(coefficients[Table::kDegree], piece);
  for (int i = Table::kDegree - 1; i >= 0; --i) {
    left = left * rest + pick(coefficients[i], piece);
  }
  return x < 0 ? left : 1 - left;
}

template <typename Function>
FUSEWHEEL_INLINE Vec<double> by_pieces(Vec<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) {
    x[i] = x[i] < 0 ? Function::left(-x[i]) : 1 - Function::left(x[i]);
  }
  return x;
}

}  // namespace fusewheel::FUSEWHEEL_ISA
