// What attention_decode multiplies by AMX, in the order in which AMX reads it.
#pragma once

#include "amx_pack.h"
#include "decode_shares.h"

#if defined(__AVX512F__)

namespace fusewheel::FUSEWHEEL_ISA {

// Values that are packed at a time: they stay in the first-level cache.
constexpr int64_t kBlock = 64;
static_assert(kDecodePart % kBlock == 0);

// How numbers are cut: float32 has the digits of three numbers in bfloat16. The shares of results in 16
// bits need no more than those of two.
struct Cut {
  int64_t parts;
  int64_t queries;  // whose parts a tile holds; part p of query i is row p * queries + i

  explicit Cut(const DecodeShape& shape)
      : parts(shape.dtype == Dtype::kFloat32 ? 3 : 2), queries(kTile / parts) {
    const int64_t group = shape.heads / shape.kv_heads;
    queries = group < queries ? group : queries;
  }

  int64_t rows() const { return parts * queries; }

  // What the parts of query i give, the small ones first.
  FUSEWHEEL_INLINE Vec<float> small(const Vec<float>* rows, int64_t i) const {
    Vec<float> sum = rows[(parts - 1) * queries + i];
    for (int64_t p = parts - 2; p > 0; --p) {
      sum += rows[p * queries + i];
    }
    return sum;
  }
};

// The first digits, which bfloat16 holds. What is left is exact.
FUSEWHEEL_INLINE Vec<float> first_digits(Vec<float> value) {
  const auto cut = bit_cast<Vec<float>>(bit_cast<Bits>(value) & 0xffff0000);
  return value == value ? cut : value;
}

// Parts of 32 numbers of a query; part p goes to to[p * distance].
FUSEWHEEL_AMX_INLINE void cut_numbers(Vec<float> low, Vec<float> high, int64_t parts, __m512i* to,
                                      int64_t distance) {
  for (int64_t p = 0; p < parts; ++p) {
    const bool last = p + 1 == parts;
    const Vec<float> own[] = {last ? low : first_digits(low), last ? high : first_digits(high)};
    to[p * distance] = rounded(own[0], own[1]);
    low -= own[0];
    high -= own[1];
  }
}

// Thirty-two numbers of a cache, of which `live` are read.
FUSEWHEEL_INLINE __m512i load_row(const BFloat16* from, __mmask32 live) {
  return _mm512_maskz_loadu_epi16(live, from);
}
FUSEWHEEL_AMX_INLINE __m512i load_row(const int8_t* from, __mmask32 live) {
  const __m256i codes = _mm256_maskz_loadu_epi8(live, from);
  const auto wide = [](__m128i own) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(own)); };
  return rounded(bit_cast<Vec<float>>(wide(_mm256_castsi256_si128(codes))),
                 bit_cast<Vec<float>>(wide(_mm256_extracti128_si256(codes, 1))));
}

FUSEWHEEL_INLINE __mmask32 live_of(int64_t size, int64_t column) {
  return ~__mmask32{0} >> (size - column < kStep ? kStep - size + column : 0);
}

// Sixteen keys.
struct Keys {
  const BFloat16* data;
  int64_t stride;
};

// Where they lie, if tiles can be read there and no more than the keys; else they are copied.
template <typename E>
FUSEWHEEL_AMX_INLINE Keys keys_at(const E* keys, const int64_t* at, int64_t size, BFloat16* rows) {
  if constexpr (sizeof(E) == sizeof(BFloat16)) {
    const int64_t distance = at[1] - at[0];
    bool even = size % kStep == 0;
    for (int64_t i = 2; even && i < kTile; ++i) {
      even = at[i] - at[i - 1] == distance;
    }
    if (even) {
      return {keys + at[0], distance};
    }
  }
  const int64_t stride = step_stride(size);
  for (int64_t i = 0; i < kTile; ++i) {
    for (int64_t column = 0; column < size; column += kStep) {
      _mm512_store_si512(rows + i * stride + column,
                         load_row(keys + at[i] + column, live_of(size, column)));
    }
  }
  return {rows, stride};
}

// Rows that are needed soon. They are asked for a few at a time between the computations: so the memory
// never rests, and never has more to do than it can remember.
template <typename E>
struct Ahead {
  const E* data;
  const int64_t* at;
  int64_t size;
  int64_t row;
  int64_t end;

  FUSEWHEEL_INLINE void ask(int64_t count) {
    constexpr int64_t line = kLine / static_cast<int64_t>(sizeof(E));
    const int64_t last = row + count < end ? row + count : end;
    for (; row < last; ++row) {
      const E* from = data + at[row];
      for (int64_t column = 0; column < size; column += line) {
        __builtin_prefetch(from + column, 0, 2);
      }
    }
  }
};

// Two rows of values as columns to multiply by: those of even number, then those of odd number, of each
// pair of tiles.
template <typename E>
FUSEWHEEL_AMX_INLINE void pack_rows(const E* row, const E* next, int64_t size, BFloat16* to) {
  constexpr __mmask32 kOdd = 0xaaaaaaaa;
  const auto pack = [&](int64_t column, __mmask32 live) FUSEWHEEL_AMX {
    const __m512i low = load_row(row + column, live);
    const __m512i high = load_row(next + column, live);
    BFloat16* own = to + column * kBlock;
    _mm512_store_si512(own, _mm512_mask_blend_epi16(kOdd, low, _mm512_slli_epi32(high, 16)));
    _mm512_store_si512(own + kTile * kBlock,
                       _mm512_mask_blend_epi16(kOdd, _mm512_srli_epi32(low, 16), high));
  };
  int64_t column = 0;
  for (; column + kStep <= size; column += kStep) {
    pack(column, ~__mmask32{0});
  }
  if (column < size) {
    pack(column, live_of(size, column));
  }
}

// Values of kBlock keys. In the place of keys that are not seen, at[] has one that is.
template <typename E>
FUSEWHEEL_AMX_INLINE void pack_values(const E* values, const int64_t* at, int64_t size,
                                      Ahead<E>* ahead, BFloat16* to) {
  for (int64_t key = 0; key < kBlock; key += 2) {
    ahead->ask(1);
    pack_rows(values + at[key], values + at[key + 1], size, to + key * kTile);
  }
}

// Parts of the shares of kBlock keys, rows to multiply.
FUSEWHEEL_AMX_INLINE void pack_shares(const Cut& cut, const float* shares, int64_t count,
                                      Range known, BFloat16* to) {
  const auto read = [&](const float* row, int64_t key) {
    return key >= known.begin && key < known.end ? load(row + key) : Vec<float>{};
  };
  for (int64_t i = 0; i < count; ++i) {
    const float* row = shares + i * kRoom;
    for (int64_t key = 0; key < kBlock; key += kStep) {
      cut_numbers(read(row, key), read(row, key + kTile), cut.parts,
                  reinterpret_cast<__m512i*>(to + i * kBlock + key),
                  cut.queries * kBlock / kStep);
    }
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX512F__
