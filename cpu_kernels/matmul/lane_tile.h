// The register tile of row_lanes.h: numbers of a few rows of the weight times rows of a in lanes.
#pragma once

#include <type_traits>

#include "simd/prefetch.h"

#if defined(__AVX512F__)
#include "simd/amx.h"
// For pairs; of these instructions float32 uses none.
#define FUSEWHEEL_LANES FUSEWHEEL_AMX
#else
#define FUSEWHEEL_LANES
#endif

namespace fusewheel::FUSEWHEEL_ISA {

// Rows of a are multiplied in bunches of so many.
constexpr int64_t kBunch = 8;
// Rows of the weight that are multiplied before the next ones come: in memory they may lie at the same place of
// every cache, which has no room for more.
constexpr int64_t kLaneColumns = 8;

constexpr int64_t kLineSteps = kLineBytes / static_cast<int64_t>(sizeof(float));

// A bunch, and two of them.
typedef float Bunch __attribute__((vector_size(32)));
#if defined(__AVX512F__)
using TwoBunches = Vec<float>;
#endif

// Some steps of k of some rows of the weight and of all rows of a, which lie side by side.
struct LaneTask {
  const float* w;
  int64_t w_stride;
  const float* a;
  int64_t lanes;  // from one step of a to the next, and from one column of sums to the next
  int64_t depth;
  float* sums;  // [columns, lanes]
  bool first;   // else they are added
  int64_t ahead;  // from a number of the weight to one that is asked for, or 0

  FUSEWHEEL_INLINE LaneTask at(int64_t column, int64_t lane) const {
    LaneTask other = *this;
    other.w += column * w_stride;
    other.a += lane;
    other.sums += column * lanes + lane;
    return other;
  }
};

// A step of k is 32 bits of a row: one number, or two neighbours in bfloat16.
struct NeighbourPair {};

template <typename Number, typename V>
inline __attribute__((always_inline)) FUSEWHEEL_LANES V add_step(V sum, V x, const float* w) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<Number, NeighbourPair>) {
    int pair;
    __builtin_memcpy(&pair, w, sizeof(pair));
    if constexpr (sizeof(V) == 64) {
      return _mm512_dpbf16_ps(sum, bit_cast<__m512bh>(x), bit_cast<__m512bh>(_mm512_set1_epi32(pair)));
    } else {
      return _mm256_dpbf16_ps(sum, bit_cast<__m256bh>(x), bit_cast<__m256bh>(_mm256_set1_epi32(pair)));
    }
  }
#endif
  return sum + x * *w;
}

template <typename Number, typename V, int columns, int vectors>
inline __attribute__((always_inline)) FUSEWHEEL_LANES void lane_tile(const LaneTask& task, int64_t ahead) {
  constexpr int width = sizeof(V) / sizeof(float);
  // Processors that multiply two registers at a time wait for each of fewer than eight sums.
  constexpr int chains = columns * vectors < 8 ? 2 : 1;
  V sums[columns][vectors][chains];
#pragma GCC unroll 8
  for (int j = 0; j < columns; ++j) {
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) {
#pragma GCC unroll 2
      for (int c = 0; c < chains; ++c) {
        sums[j][v][c] = V{};
      }
    }
  }
  const auto step = [&](int64_t i, int c) FUSEWHEEL_LANES FUSEWHEEL_INLINED {
    V x[vectors];
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) {
      __builtin_memcpy(&x[v], task.a + i * task.lanes + v * width, sizeof(V));
    }
#pragma GCC unroll 8
    for (int j = 0; j < columns; ++j) {
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) {
        sums[j][v][c] = add_step<Number>(sums[j][v][c], x[v], task.w + j * task.w_stride + i);
      }
    }
  };
  int64_t i = 0;
  for (; i + kLineSteps <= task.depth; i += kLineSteps) {
    if (ahead != 0) {
#pragma GCC unroll 8
      for (int j = 0; j < columns; ++j) {
        __builtin_prefetch(task.w + j * task.w_stride + i + ahead, 0, kSecondLevel);
      }
    }
    for (int64_t s = 0; s < kLineSteps; s += 2) {
      step(i + s, 0);
      step(i + s + 1, chains - 1);
    }
  }
  for (; i < task.depth; ++i) {
    step(i, 0);
  }
#pragma GCC unroll 8
  for (int j = 0; j < columns; ++j) {
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) {
      float* to = task.sums + j * task.lanes + v * width;
      V before = {};
      if (!task.first) {
        __builtin_memcpy(&before, to, sizeof(V));
      }
      before += chains > 1 ? sums[j][v][0] + sums[j][v][chains - 1] : sums[j][v][0];
      __builtin_memcpy(to, &before, sizeof(V));
    }
  }
}

// All columns for some bunches; fewer of the columns at a time where a bunch is not alone.
template <typename Number, int bunches, int all>
inline __attribute__((always_inline)) FUSEWHEEL_LANES void bunch_tiles(const LaneTask& task, int64_t lane) {
  constexpr bool wide = kBytes == 64 && bunches % 2 == 0;
  constexpr int vectors = wide ? bunches / 2 : bunches;
  constexpr int most = bunches > 1 ? 4 : 8;
  constexpr int columns = most < all ? most : all;
  for (int column = 0; column < all; column += columns) {
#if defined(__AVX512F__)
    using V = std::conditional_t<wide, TwoBunches, Bunch>;
#else
    using V = Bunch;
#endif
    lane_tile<Number, V, columns, vectors>(task.at(column, lane), lane == 0 ? task.ahead : 0);
  }
}

template <typename Number, int columns>
FUSEWHEEL_LANES inline __attribute__((noinline)) void lane_tiles(const LaneTask& task) {
  constexpr int most = kBytes == 64 ? 4 : 3;  // bunches
  int64_t left = task.lanes / kBunch;
  for (int64_t lane = 0; left > 0;) {
    // Four and one would be slower than three and two.
    const int64_t some = left < most ? left : left == most + 1 ? most - 1 : most;
    switch (some) {
      case 1: bunch_tiles<Number, 1, columns>(task, lane); break;
      case 2: bunch_tiles<Number, 2, columns>(task, lane); break;
      case 3: bunch_tiles<Number, 3, columns>(task, lane); break;
      default: bunch_tiles<Number, 4, columns>(task, lane);
    }
    lane += some * kBunch;
    left -= some;
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
