// Where the operands of tiled products come from.
#pragma once

#include "common/launch.h"
#include "common/vector.h"

namespace fusewheel {
namespace {

constexpr int kTile = 64;  // rows of the result that a block has
constexpr int kTileWarps = 4;
constexpr int kTileThreads = kWarp * kTileWarps;

inline dim3 tile_block() { return dim3(kWarp, kTileWarps); }

inline int64_t tiles_of(int64_t count, int64_t size = kTile) { return (count + size - 1) / size; }

// V elements of a matrix of T, side by side along the outer or the inner direction.
template <typename T, bool kAlongInner>
struct TileSource {
  using Type = T;
  static constexpr bool along_inner = kAlongInner;
  const T* data;
  int64_t stride;
  bool aligned;

  TileSource(const void* data, int64_t stride, int64_t step = 0)
      : data(static_cast<const T*>(data)),
        stride(stride),
        aligned(is_aligned(data) && stride % kLanes<T> == 0 && step % kVectorBytes == 0) {}

  // `step` bytes further.
  __device__ TileSource at(int64_t step) const {
    TileSource other = *this;
    other.data = reinterpret_cast<const T*>(reinterpret_cast<const char*>(data) + step);
    return other;
  }

  __device__ const T* from(int64_t outer, int64_t inner) const {
    return kAlongInner ? data + outer * stride + inner : data + inner * stride + outer;
  }

  template <int V>
  __device__ void read(int64_t outer, int64_t inner, int live, Accumulate<T> (&to)[V]) const {
    if (aligned && live >= V) {
      load(from(outer, inner), to);
    } else {
      load(from(outer, inner), to, live);
    }
  }
};

// A matrix of any dtype and strides.
template <typename T>
struct AnyTileSource {
  using Type = T;
  static constexpr bool along_inner = true;
  const char* data;
  Dtype dtype;
  int64_t outer_stride;
  int64_t inner_stride;

  __device__ AnyTileSource at(int64_t step) const {
    AnyTileSource other = *this;
    other.data += step;
    return other;
  }

  template <int V>
  __device__ void read(int64_t outer, int64_t inner, int live, Accumulate<T> (&to)[V]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      to[i] = i < live ? load_one<Accumulate<T>>(
                             data, dtype, outer * outer_stride + (inner + i) * inner_stride)
                       : 0;
    }
  }
};

// Which part of a matrix a tile comes from; what is beyond it is zero.
struct TileRange {
  int64_t outer;
  int64_t outer_end;
  int64_t inner;
  int64_t inner_end;
};

}  // namespace
}  // namespace fusewheel
