// Reads the weight of a linear layer as it is stored, 128 bits at a time.
#pragma once

#include "args.h"
#include "common/divide.h"
#include "common/launch.h"
#include "decoded.h"

namespace fusewheel {
namespace {

template <typename A>
struct Scale {
  A scale;
  A zero;
};

// A part of 128 bits whose bytes have a code each.
template <typename Codes, typename A>
__device__ void decode_bytes(const uint4& bits, int part, const Scale<A>& by, A (&to)[16]) {
  unsigned char codes[16];
  memcpy(codes, &bits, sizeof(bits));
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    to[i] = Codes::number(codes[i], part, by);
  }
}

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
  static __device__ A number(unsigned char code, int, const Scale<A>& by) {
    return static_cast<A>(static_cast<int8_t>(code)) * by.scale;
  }

  template <typename A>
  static __device__ void decode(const uint4& bits, int part, const Scale<A>& by, A (&to)[kPart]) {
    decode_bytes<Int8>(bits, part, by, to);
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
  static __device__ A number(unsigned char code, int part, const Scale<A>& by) {
    return multiply_add(static_cast<A>((code >> (4 * part)) & 0xf), by.scale, by.zero);
  }

  template <typename A>
  static __device__ void decode(const uint4& bits, int part, const Scale<A>& by, A (&to)[kPart]) {
    decode_bytes<Int4>(bits, part, by, to);
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

  __device__ const unsigned char* at(int64_t row, int64_t vector) const {
    return static_cast<const unsigned char*>(weight.data) + row * stride + vector * kVectorBytes;
  }

  // Of rows that are aligned, and as long as whole vectors.
  __device__ uint4 whole_bits(int64_t row, int64_t vector) const {
    const unsigned char* from = at(row, vector);
    FUSEWHEEL_EXPECT_ALIGNED(from, kVectorBytes);
    return __ldg(reinterpret_cast<const uint4*>(from));
  }

  // Bytes beyond the row's end are zero.
  __device__ uint4 bits(int64_t row, int64_t vector) const {
    const int64_t left = bytes - vector * kVectorBytes;
    if (aligned && left >= kVectorBytes) {
      return whole_bits(row, vector);
    }
    const unsigned char* from = at(row, vector);
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

// How many threads share 128 bits of codes: each writes V numbers.
template <typename Codes, int V>
constexpr int kSharing = Codes::kParts * Codes::kPart / V;

// A panel of the weight as numbers of A. Neighbouring threads write neighbouring numbers, whose codes they
// find in the same vector.
template <typename A, typename Codes, int V>
__global__ void __launch_bounds__(kDequantiseThreads)
    dequantise(const __grid_constant__ WeightReader<Codes> weight, const Panel panel,
               Divisor pieces, int64_t items, bool aligned) {
  const int64_t size = panel.columns;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kDequantiseThreads;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kDequantiseThreads + threadIdx.x;
       item < items; item += threads) {
    const int64_t row = pieces.divide(item);
    const int64_t piece = item - row * pieces.divisor;
    const int64_t stored = panel.column / weight.kElements + piece / kSharing<Codes, V>;
    const uint4 bits = weight.bits(panel.row + row, stored);
    const auto scale = weight.template scale<A>(panel.row + row, stored);
    const int first = static_cast<int>(piece % kSharing<Codes, V>) * V;
    const int byte = first % Codes::kPart;
    const uint32_t words[] = {byte < 8 ? bits.x : bits.z, byte < 8 ? bits.y : bits.w};
    A values[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const uint32_t word = V > 4 ? words[i / 4] : words[byte / 4 % 2];
      values[i] = Codes::number(static_cast<unsigned char>(word >> (byte % 4 + i % 4) * 8),
                                first / Codes::kPart, scale);
    }
    const int64_t at = row * size + piece * V;
    if (aligned) {
      write_weights(values, panel.to, panel.step, at);
    } else if constexpr (V == kLanes<A>) {
      store(static_cast<A*>(panel.to) + at, values, size - piece * V);
    }
  }
}

// Those in bfloat16 are aligned.
template <typename Codes>
void dequantise_launch(const char* op, const LinearWeight& weight, const Panel& panel,
                       Stream stream) {
  const WeightReader<Codes> reader(weight);
  const auto run = [&](auto zero, auto together) {
    using A = decltype(zero);
    constexpr int V = decltype(together)::value;
    const int64_t pieces = (panel.columns + V - 1) / V;
    const int64_t items = panel.rows * pieces;
    if (items == 0) {
      return;
    }
    const bool aligned = is_aligned(panel.to) && panel.columns % V == 0;
    launch(op, dequantise<A, Codes, V>, blocks_for(items, kDequantiseThreads), kDequantiseThreads,
           0, stream, reader, panel, Divisor(pieces), items, aligned);
  };
  switch (panel.dtype) {
    case Dtype::kFloat64: return run(double{}, std::integral_constant<int, kLanes<double>>());
    case Dtype::kBFloat16: return run(float{}, std::integral_constant<int, kSums>());
    default: return run(float{}, std::integral_constant<int, kFloats>());
  }
}

}  // namespace
}  // namespace fusewheel
