// A stretch of one row of a weight, as numbers of the accumulation type.
#pragma once

#include <fusewheel/linear/linear_args.h>

#include "simd/prefetch.h"
#include "blocks.h"
#include "codes.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Longest stretch decoded at once: its scales fit beside it in the first-level cache.
constexpr int64_t kStretch = 1024;
constexpr int64_t kMostGroups = kStretch / kInt4Block + 1;

// `count` numbers of any floating dtype.
template <typename A>
FUSEWHEEL_INLINE void widen_all(Dtype dtype, const void* from, int64_t begin, int64_t count, A* to) {
  for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* source = static_cast<const T*>(from) + begin;
    if constexpr (sizeof(Accumulate<T>) == sizeof(A)) {
      for_each_vector<A>(count, [&](int64_t i, int64_t live) {
        store(to + i, load(source + i, live), live);
      });
    } else {
      // Between float64 and the rest: for checks, not for speed.
      for (int64_t i = 0; i < count; ++i) {
        to[i] = static_cast<A>(load(source + i, 1)[0]);
      }
    }
  });
}

FUSEWHEEL_INLINE void decode_int8(const LinearWeight& weight, int64_t row, int64_t begin,
                                  int64_t count, float* to) {
  const int8_t* codes = static_cast<const int8_t*>(weight.data) + row * weight.stride;
  for (int64_t i = 0; i < count;) {
    const int64_t group = (begin + i) / weight.group_size;
    int64_t last = (group + 1) * weight.group_size - begin;
    last = last < count ? last : count;
    float scale = 0;
    widen_all(weight.scale_dtype, weight.scales, row * weight.groups + group, 1, &scale);
    for (; i + kLanes<float> <= last; i += kLanes<float>) {
      store(to + i, from_codes(load_codes(codes + begin + i)) * scale);
    }
    for (; i < last; ++i) {
      to[i] = static_cast<float>(codes[begin + i]) * scale;
    }
  }
}

FUSEWHEEL_INLINE void decode_int4(const LinearWeight& weight, int64_t row, int64_t begin,
                                  int64_t count, float* to) {
  float scales[kMostGroups];
  float zeros[kMostGroups];
  const int64_t first = begin / weight.group_size;
  const int64_t groups = (begin + count - 1) / weight.group_size - first + 1;
  widen_all(weight.scale_dtype, weight.scales, row * weight.groups + first, groups, scales);
  widen_all(weight.scale_dtype, weight.zeros, row * weight.groups + first, groups, zeros);
  const uint8_t* codes = static_cast<const uint8_t*>(weight.data) + row * weight.stride + begin / 2;
  constexpr int lanes = kLanes<float>;
  for (int64_t i = 0; i < count; i += kInt4Block, codes += kInt4Block / 2, to += kInt4Block) {
    const int64_t group = (begin + i) / weight.group_size - first;
    const float scale = scales[group];
    const float zero = zeros[group];
    for (int j = 0; j < kInt4Block / 2; j += lanes) {
      const Integers pair = load_codes(codes + j);
      store(to + j, from_codes(pair & 15) * scale + zero);
      store(to + kInt4Block / 2 + j, from_codes(pair >> 4) * scale + zero);
    }
  }
}

// Elements [begin, begin + count) of a row, at most kStretch of them. Of 4-bit codes and of blocks both
// are multiples of 32.
FUSEWHEEL_INLINE void decode(const LinearWeight& weight, int64_t row, int64_t begin, int64_t count,
                             float* to) {
  switch (weight.kind) {
    case WeightKind::kFloating:
      return widen_all(weight.dtype, weight.data, row * weight.stride + begin, count, to);
    case WeightKind::kInt8: return decode_int8(weight, row, begin, count, to);
    case WeightKind::kInt4: return decode_int4(weight, row, begin, count, to);
    case WeightKind::kBlocks: return decode_blocks(weight, row, begin, count, to);
  }
}

// float64 is there for checks, not for speed.
FUSEWHEEL_INLINE void decode(const LinearWeight& weight, int64_t row, int64_t begin, int64_t count,
                             double* to) {
  if (weight.kind == WeightKind::kFloating) {
    return widen_all(weight.dtype, weight.data, row * weight.stride + begin, count, to);
  }
  if (weight.kind == WeightKind::kBlocks) {
    float narrow[kStretch];
    decode_blocks(weight, row, begin, count, narrow);
    return widen_all(Dtype::kFloat32, narrow, 0, count, to);
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t k = begin + i;
    const int64_t group = row * weight.groups + k / weight.group_size;
    double scale = 0;
    widen_all(weight.scale_dtype, weight.scales, group, 1, &scale);
    if (weight.kind == WeightKind::kInt8) {
      to[i] = static_cast<const int8_t*>(weight.data)[row * weight.stride + k] * scale;
      continue;
    }
    double zero = 0;
    widen_all(weight.scale_dtype, weight.zeros, group, 1, &zero);
    const int64_t byte = k / kInt4Block * (kInt4Block / 2) + k % (kInt4Block / 2);
    const uint8_t pair = static_cast<const uint8_t*>(weight.data)[row * weight.stride + byte];
    const int code = k % kInt4Block < kInt4Block / 2 ? pair & 15 : pair >> 4;
    to[i] = code * scale + zero;
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
