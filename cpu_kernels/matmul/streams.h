// One row of a: the weight passes from memory once, and nothing else counts.
#pragma once

#include "decode.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Rows of the weight read side by side. Each asks the cache for its line of the next such rows: the
// hardware's own prefetching stops at a page's end, which is where rows tend to end too.
constexpr int kStreams = 8;
// Numbers between two such requests: a cache line of them, or the smallest group of codes.
template <typename W>
constexpr int64_t kStreamStep = sizeof(W) == 1 ? 32 : 64 / static_cast<int64_t>(sizeof(W));

FUSEWHEEL_INLINE Vec<float> load_number(const int8_t* from) { return from_codes(load_codes(from)); }
template <typename W>
FUSEWHEEL_INLINE Vec<float> load_number(const W* from) {
  return load(from);
}
FUSEWHEEL_INLINE float to_number(int8_t code) { return code; }
template <typename W>
FUSEWHEEL_INLINE float to_number(W number) {
  return load(&number, 1)[0];
}

// out[r] = sum over groups of scale * (a . w[r]) for `rows` neighbouring rows of numbers or 8-bit
// codes, `size` of them a group. Without scales there is one group.
template <int rows, typename W>
__attribute__((noinline)) void dot_streams(const W* w, int64_t stride, const float* a,
                                           const float* scales, int64_t groups, int64_t size,
                                           float* out) {
  constexpr int lanes = kLanes<float>;
  constexpr int64_t step = kStreamStep<W>;
  Vec<float> totals[rows] = {};
  float rest[rows] = {};
  for (int64_t g = 0; g < groups; ++g, w += size, a += size) {
    Vec<float> sums[rows] = {};
    int64_t k = 0;
    for (; k + step <= size; k += step) {
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const W* from = w + r * stride + k;
        __builtin_prefetch(from + rows * stride);
#pragma GCC unroll 8
        for (int64_t i = 0; i < step; i += lanes) {
          sums[r] += load_number(from + i) * load(a + k + i);
        }
      }
    }
    for (int r = 0; r < rows; ++r) {
      const W* from = w + r * stride;
      int64_t i = k;
      for (; i + lanes <= size; i += lanes) {
        sums[r] += load_number(from + i) * load(a + i);
      }
      float tail = 0;
      for (; i < size; ++i) {
        tail += to_number(from[i]) * a[i];
      }
      const float scale = scales == nullptr ? 1.0f : scales[r * groups + g];
      rest[r] += tail * scale;
      totals[r] += sums[r] * splat(scale);
    }
  }
  for (int r = 0; r < rows; ++r) {
    out[r] = sum<float>(totals[r]) + rest[r];
  }
}

// Rows [begin, begin + count) of the weight times `a`; `scales` are those of these rows.
template <typename W>
FUSEWHEEL_INLINE void stream_rows(const LinearWeight& weight, int64_t begin, int64_t count,
                                  const float* a, const float* scales, int64_t groups, float* out) {
  const W* w = static_cast<const W*>(weight.data) + begin * weight.stride;
  const int64_t size = groups == 1 ? weight.columns : weight.group_size;
  int64_t row = 0;
  for (; row + kStreams <= count; row += kStreams) {
    dot_streams<kStreams>(w + row * weight.stride, weight.stride, a, scales, groups, size,
                          out + row);
    scales += scales == nullptr ? 0 : kStreams * groups;
  }
  for (; row < count; ++row) {
    dot_streams<1>(w + row * weight.stride, weight.stride, a, scales, groups, size, out + row);
    scales += scales == nullptr ? 0 : groups;
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
