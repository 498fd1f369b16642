// Reads the weight of a linear layer as it is stored, 128 bits at a time.
#pragma once

#include "args.h"
#include "common/divide.h"
#include "common/launch.h"
#include "common/vector.h"

namespace fusewheel {
namespace {

template <typename A>
struct Scale {
  A scale;
  A zero;
};

// What 128 bits of a row hold: kParts runs of kPart neighbouring elements.
template <typename W>
struct Floats {
  static constexpr int kParts = 1;
  static constexpr int kPart = kLanes<W>;
  static constexpr int kBytes = sizeof(W);  // of what strides count
  static constexpr bool kHasScale = false;
  static constexpr bool kHasZero = false;

  template <typename A>
  static __device__ void decode(const uint4& bits, int, const Scale<A>&, A (&to)[kPart]) {
    W elements[kPart];
    memcpy(elements, &bits, sizeof(bits));
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      to[i] = widen(elements[i]);
    }
  }
};

struct Int8 {
  static constexpr int kParts = 1;
  static constexpr int kPart = 16;
  static constexpr int kBytes = 1;
  static constexpr bool kHasScale = true;
  static constexpr bool kHasZero = false;

  template <typename A>
  static __device__ void decode(const uint4& bits, int, const Scale<A>& by, A (&to)[kPart]) {
    int8_t codes[kPart];
    memcpy(codes, &bits, sizeof(bits));
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      to[i] = static_cast<A>(codes[i]) * by.scale;
    }
  }
};

struct Int4 {
  static constexpr int kParts = 2;  // low halves, high halves
  static constexpr int kPart = 16;
  static constexpr int kBytes = 1;
  static constexpr bool kHasScale = true;
  static constexpr bool kHasZero = true;
  static_assert(kParts * kPart == kInt4Block, "128 bits are one block");

  template <typename A>
  static __device__ void decode(const uint4& bits, int part, const Scale<A>& by, A (&to)[kPart]) {
    unsigned char codes[kPart];
    memcpy(codes, &bits, sizeof(bits));
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      to[i] = multiply_add(static_cast<A>((codes[i] >> (4 * part)) & 0xf), by.scale, by.zero);
    }
  }
};

template <typename Codes>
struct WeightReader {
  static constexpr int kElements = Codes::kParts * Codes::kPart;  // of a vector

  LinearWeight weight;
  int64_t stride;  // in bytes
  int64_t bytes;   // of a row
  Divisor group_size;
  bool aligned;

  explicit WeightReader(const LinearWeight& weight)
      : weight(weight),
        stride(weight.stride * Codes::kBytes),
        bytes(weight.columns * kVectorBytes / kElements),
        group_size(weight.group_size > 0 ? weight.group_size : 1),
        aligned(is_aligned(weight.data) && stride % kVectorBytes == 0) {}

  __host__ __device__ int64_t vectors() const {
    return (weight.columns + kElements - 1) / kElements;
  }

  // Bytes beyond the row's end are zero.
  __device__ uint4 bits(int64_t row, int64_t vector) const {
    const auto* from =
        static_cast<const unsigned char*>(weight.data) + row * stride + vector * kVectorBytes;
    const int64_t left = bytes - vector * kVectorBytes;
    if (aligned && left >= kVectorBytes) {
      FUSEWHEEL_EXPECT_ALIGNED(from, kVectorBytes);
      return *reinterpret_cast<const uint4*>(from);
    }
    unsigned char stored[kVectorBytes];
#pragma unroll
    for (int i = 0; i < kVectorBytes; ++i) {
      stored[i] = i < left ? from[i] : 0;
    }
    uint4 bits;
    memcpy(&bits, stored, sizeof(bits));
    return bits;
  }

  // A vector lies within one group.
  template <typename A>
  __device__ Scale<A> scale(int64_t row, int64_t vector) const {
    Scale<A> by{};
    if constexpr (Codes::kHasScale) {
      const int64_t group = weight.groups == 1 ? 0 : group_size.divide(vector * kElements);
      const int64_t i = row * weight.groups + group;
      by.scale = load_one<A>(weight.scales, weight.scale_dtype, i);
      if constexpr (Codes::kHasZero) {
        by.zero = load_one<A>(weight.zeros, weight.scale_dtype, i);
      }
    }
    return by;
  }
};

constexpr int kDequantiseThreads = 256;

// A panel of the weight as numbers; a vector a thread.
template <typename A, typename Codes>
__global__ void __launch_bounds__(kDequantiseThreads)
    dequantise(const __grid_constant__ WeightReader<Codes> weight, const Panel panel,
               Divisor vectors, int64_t items, bool aligned) {
  const int64_t size = panel.columns;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kDequantiseThreads;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kDequantiseThreads + threadIdx.x;
       item < items; item += threads) {
    const int64_t row = vectors.divide(item);
    const int64_t vector = item - row * vectors.divisor;
    const int64_t stored = panel.column / weight.kElements + vector;
    const uint4 bits = weight.bits(panel.row + row, stored);
    const auto scale = weight.template scale<A>(panel.row + row, stored);
    auto* to = static_cast<A*>(panel.to);
#pragma unroll
    for (int part = 0; part < Codes::kParts; ++part) {
      const int64_t k = vector * weight.kElements + part * Codes::kPart;
      A values[Codes::kPart];
      Codes::decode(bits, part, scale, values);
      if (aligned && size - k >= Codes::kPart) {
        store(to + row * size + k, values);
      } else {
        store(to + row * size + k, values, size - k);
      }
    }
  }
}

template <typename Codes>
void dequantise_launch(const char* op, const LinearWeight& weight, const Panel& panel,
                       Stream stream) {
  const WeightReader<Codes> reader(weight);
  const int64_t vectors = (panel.columns + reader.kElements - 1) / reader.kElements;
  const int64_t items = panel.rows * vectors;
  if (items == 0) {
    return;
  }
  const auto run = [&](auto zero) {
    using A = decltype(zero);
    const bool aligned = is_aligned(panel.to) && panel.columns % kLanes<A> == 0;
    launch(op, dequantise<A, Codes>, blocks_for(items, kDequantiseThreads), kDequantiseThreads, 0,
           stream, reader, panel, Divisor(vectors), items, aligned);
  };
  if (panel.dtype == Dtype::kFloat64) {
    run(double{});
  } else {
    run(float{});
  }
}

}  // namespace
}  // namespace fusewheel
