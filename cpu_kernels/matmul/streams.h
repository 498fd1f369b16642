// One row of a: the weight passes from memory once, and nothing else counts.
#pragma once

#include "decode.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Rows of the weight read side by side, if not in turn. Where that pays, each asks the cache for its
// line of the next such rows: the hardware's own prefetching stops at a page's end, where rows tend to
// end too.
constexpr int kStreams = 8;
// A row by itself asks for what comes so many bytes later.
constexpr int64_t kBytesAhead = 8192;
// A row of a that is longer than this leaves no room in the first-level cache: it is read once for
// several rows of the weight.
constexpr int64_t kTurnDepth = 4096;

template <int number>
struct Constant {
  static constexpr int value = number;
  constexpr operator int64_t() const { return number; }
};

FUSEWHEEL_INLINE Vec<float> load_number(const int8_t* from) { return from_codes(load_codes(from)); }
template <typename W>
FUSEWHEEL_INLINE Vec<float> load_number(const W* from) {
  return load(from);
}
// The first `live` of a vector; the others are zeros and are not read.
FUSEWHEEL_INLINE Vec<float> load_number(const int8_t* from, int64_t live) {
  if (live >= kLanes<float>) {
    return load_number(from);
  }
  int8_t codes[kLanes<float>] = {};
  __builtin_memcpy(codes, from, static_cast<size_t>(live));
  return load_number(codes);
}
template <typename W>
FUSEWHEEL_INLINE Vec<float> load_number(const W* from, int64_t live) {
  return load(from, live);
}
FUSEWHEEL_INLINE float to_number(int8_t code) { return code; }
template <typename W>
FUSEWHEEL_INLINE float to_number(W number) {
  return load(&number, 1)[0];
}

// Numbers in a cache line.
template <typename W>
constexpr int64_t kLineNumbers = 64 / static_cast<int64_t>(sizeof(W));
// Numbers that are summed apart: the longer a sum, the more it rounds.
constexpr int64_t kStreamDepth = 512;

// What is left of a group after its whole steps, for `rows` rows.
template <int rows, typename W>
FUSEWHEEL_INLINE void dot_rest(const W* w, int64_t stride, const float* a, int64_t count,
                               Vec<float>* sums, float* rest, const float* scales,
                               int64_t groups) {
  constexpr int lanes = kLanes<float>;
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    const W* from = w + r * stride;
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      sums[r] += load_number(from + i) * load(a + i);
    }
    float tail = 0;
    for (; i < count; ++i) {
      tail += to_number(from[i]) * a[i];
    }
    rest[r] += tail * (scales == nullptr ? 1.0f : scales[r * groups]);
  }
}

// out[r] = sum over groups of scale * (a . w[r]) for `rows` neighbouring rows of numbers or 8-bit
// codes, `size` of them a group. Without scales there is one group.
template <int rows, int64_t step, typename W>
__attribute__((noinline)) void dot_streams(const W* w, int64_t stride, const float* a,
                                           const float* scales, int64_t groups, int64_t size,
                                           float* out) {
  constexpr int lanes = kLanes<float>;
  const bool asks_ahead = rows == 1 || sizeof(W) == 1 || choices().prefetch;
  const int64_t ahead = rows > 1 ? rows * stride : kBytesAhead / static_cast<int64_t>(sizeof(W));
  // A row by itself has several sums: each would wait for its last addition.
  constexpr int parts = rows > 1 ? 1 : step / lanes < 4 ? step / lanes : 4;
  Vec<float> totals[rows] = {};
  float rest[rows] = {};
  for (int64_t g = 0; g < groups; ++g, w += size, a += size) {
    const int64_t whole = size - size % step;
    for (int64_t k = 0; k < size;) {
      Vec<float> apart[rows][parts] = {};
      const int64_t end = k + kStreamDepth < whole ? k + kStreamDepth : whole;
      for (; k < end; k += step) {
        const bool asks = step == kLineNumbers<W> || g % 2 == 0;  // for no line twice
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
          const W* from = w + r * stride + k;
          if (asks_ahead && asks) {
            __builtin_prefetch(from + ahead);
          }
#pragma GCC unroll 8
          for (int64_t i = 0; i < step; i += lanes) {
            apart[r][i / lanes % parts] += load_number(from + i) * load(a + k + i);
          }
        }
      }
      Vec<float> sums[rows];
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        sums[r] = apart[r][0];
#pragma GCC unroll 4
        for (int part = 1; part < parts; ++part) {
          sums[r] += apart[r][part];
        }
      }
      if (k == whole && k < size) {
        dot_rest<rows>(w + k, stride, a + k, size - k, sums, rest,
                       scales == nullptr ? nullptr : scales + g, groups);
        k = size;
      }
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        totals[r] += scales == nullptr ? sums[r] : sums[r] * splat(scales[r * groups + g]);
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    out[r] = sum<float>(totals[r]) + rest[r];
  }
}

// `rows` rows of the weight from `begin`, times `a`; `scales` are those of these rows.
template <int rows, typename W>
FUSEWHEEL_INLINE void stream_rows(const LinearWeight& weight, int64_t begin, const float* a,
                                  const float* scales, int64_t groups, float* out) {
  const W* w = static_cast<const W*>(weight.data) + begin * weight.stride;
  const int64_t size = groups == 1 ? weight.columns : weight.group_size;
  constexpr int64_t line = kLineNumbers<W>;
  if (sizeof(W) == 1 && size == line / 2) {
    return dot_streams<rows, line / 2>(w, weight.stride, a, scales, groups, size, out);
  }
  dot_streams<rows, line>(w, weight.stride, a, scales, groups, size, out);
}

// Calls rows(how many together, first row) for all of `count` rows.
template <int streams = kStreams, typename Rows>
FUSEWHEEL_INLINE void by_streams(int64_t count, bool in_turn, Rows rows) {
  int64_t row = 0;
  if (!in_turn) {
    for (; row + streams <= count; row += streams) {
      rows(Constant<streams>{}, row);
    }
  }
  for (; row < count; ++row) {
    rows(Constant<1>{}, row);
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
