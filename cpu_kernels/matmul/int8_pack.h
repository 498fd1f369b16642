// 8-bit codes as products of integers want them, and the memory of a thread.
#pragma once

#include "simd/bytes.h"
#include "simd/prefetch.h"
#include "simd/transpose.h"
#include "decode.h"
#include "matmul.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

// VNNI wants one factor that is not negative: codes + 128. 128 times the sum of the activations is
// taken off again.
FUSEWHEEL_INLINE Bytes shifted(Bytes codes) {
  return codes ^ bit_cast<Bytes>(static_cast<int32_t>(0x80808080u) - Integers{});
}

// Codes of a column that are packed at a time, at most.
constexpr int64_t kByteDepth = 1024;
constexpr int kByteVectors = 2;
constexpr int kByteLanes = kLanes<float>;
constexpr int64_t kBytePanels = kUnit / kByteLanes;

// Sums of rows, as integers of a group and as floats, and packed codes: of one thread.
struct Int8Scratch {
  Bytes* codes;
  int32_t* products;
  float* sums;
  float* scales;
};

inline Int8Scratch int8_scratch(void* memory, int64_t rows) {
  Bytes* codes = static_cast<Bytes*>(memory);
  int32_t* products = reinterpret_cast<int32_t*>(codes + kByteDepth * kUnit / kBytes);
  float* sums = reinterpret_cast<float*>(products + rows * kUnit);
  return {codes, products, sums, sums + rows * kUnit};
}
inline int64_t int8_scratch_bytes(int64_t rows) {
  return kByteDepth * kUnit + (2 * rows + 1) * kUnit * static_cast<int64_t>(sizeof(float));
}

// Up to kBytes codes; the others are zeros and are not read.
FUSEWHEEL_INLINE Bytes load_some(const int8_t* from, int64_t count) {
  if (count >= kBytes) {
    return load_bytes(from);
  }
  Bytes bytes = {};
  __builtin_memcpy(&bytes, from, static_cast<size_t>(count));
  return bytes;
}

// Codes [k, k + depth) of rows of the weight from `column` on, with zeros up to `padded`: one row a
// lane, four of its codes a vector, which put(vector) stores. Rows past `columns` repeat the last one.
template <typename Put>
FUSEWHEEL_INLINE void pack_quads(const LinearWeight& weight, int64_t column, int64_t columns,
                                 int64_t k, int64_t depth, int64_t padded, Put put) {
  // To what is packed next: of these rows, or of those of the next unit.
  const int64_t ahead = k + depth == weight.columns ? kUnit * weight.stride - k : depth;
  for (int64_t panel = 0; panel < kBytePanels; ++panel) {
    const int8_t* rows[kByteLanes];
    for (int lane = 0; lane < kByteLanes; ++lane) {
      const int64_t row = panel * kByteLanes + lane;
      rows[lane] = static_cast<const int8_t*>(weight.data) +
                   (column + (row < columns ? row : columns - 1)) * weight.stride + k;
    }
    for (int64_t i = 0; i < padded; i += kBytes) {
      Vec<float> square[kByteLanes];
      for (int lane = 0; lane < kByteLanes; ++lane) {
        if (i % kLineBytes == 0) {
          __builtin_prefetch(rows[lane] + i + ahead, 0, kSecondLevel);
        }
        square[lane] = bit_cast<Vec<float>>(i < depth ? load_some(rows[lane] + i, depth - i) : Bytes{});
      }
      transpose<float>(square);
      for (int quad = 0; quad < kByteLanes && i + 4 * quad < padded; ++quad) {
        put(bit_cast<Bytes>(square[quad]));
      }
    }
  }
}

inline void pack_int8(const LinearWeight& weight, int64_t column, int64_t columns, int64_t k,
                      int64_t depth, int64_t padded, bool shift, Bytes* to) {
  pack_quads(weight, column, columns, k, depth, padded,
             [&](Bytes codes) { *to++ = shift ? shifted(codes) : codes; });
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
