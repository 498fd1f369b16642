// One row of a by digits of one plane against four rows of 4-bit codes at a time, without VNNI.
//
// A row of a small model has few blocks: those behind its last whole chunk take as long as a chunk of their
// own. Here the four rows share the lanes that they leave free.
#pragma once

#include "digits.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX2__)

constexpr int kFours = 4;

// Four rows of a weight, wherever they lie.
template <typename S>
struct FourRows {
  const uint8_t* codes[kFours];
  const S* scales[kFours];
  const S* zeros[kFours];
};

// Products of one vector of codes with digits: at most 8 * 15 * 127 = 15240 a lane, before the halves are
// added.
FUSEWHEEL_INLINE Shorts vector_products(Bytes codes, const int8_t* digits) {
  return multiply_pairs(low_half(codes), load_bytes(digits)) +
         multiply_pairs(high_half(codes), load_bytes(digits + kBytes));
}

// The numbers of `live` blocks of each row: row r's lie in every fourth lane from r on.
template <typename S>
FUSEWHEEL_INLINE Vec<float> load_fours(const S* const* rows, int64_t block, int64_t live) {
  S all[kLanes<float>] = {};
  for (int r = 0; r < kFours; ++r) {
    __builtin_memcpy(all + r * kVectorBlocks, rows[r] + block, live * sizeof(S));
  }
  return by_pieces(load(all));
}

// Number `first`, and each of those `apart` behind it, in four lanes each.
template <typename V, typename T>
FUSEWHEEL_INLINE V spread_fours(const T* first, int apart) {
  V spread;
  for (int lane = 0; lane < kLanes<float>; ++lane) {
    spread[lane] = first[lane / kFours * apart];
  }
  return spread;
}

// out[r] as dot_digits defines it. The bits of a row do not depend on which rows it comes with.
template <typename S>
__attribute__((noinline)) void dot_fours(const FourRows<S>& rows, int64_t blocks, const DigitRow& a,
                                         float* out) {
  constexpr int lanes = kLanes<float>;
  Vec<float> totals[kFours] = {};
  int64_t block = 0;
  for (; block + lanes <= blocks; block += lanes) {
    const BlockLanes of_a = block_lanes(a, block);
    const Vec<float> sums = load(a.sums + block);
    const int8_t* digits = a.digits + block / kVectorBlocks * (2 * kBytes);
#pragma GCC unroll 4
    for (int r = 0; r < kFours; ++r) {
      const uint8_t* codes = rows.codes[r] + block * (kInt4Block / 2);
      const Vec<float> scale = load(rows.scales[r] + block);
      totals[r] += (load(rows.zeros[r] + block) + scale * float{kCodeMiddle}) * sums;
      Shorts products[4];
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        products[v] = vector_products(load_bytes(codes + v * kBytes), digits + 2 * v * kBytes);
      }
      const Shorts folded = fold_pieces(products[0], products[1], products[2], products[3]);
      totals[r] +=
          from_codes(of_a.start + add_pairs(folded)) * of_a.steps * by_pieces(scale);
    }
  }
  // What is left, a vector of each row at a time: of a's numbers for these blocks, those of vector v lie
  // in every fourth lane from v on.
  Vec<float> rest = {};
  const float* steps = a.steps + block;
  const int32_t* start = a.start + block * kBlockLanes;
  for (; block < blocks; block += kVectorBlocks, ++steps, ++start) {
    const int64_t live = blocks - block < kVectorBlocks ? blocks - block : kVectorBlocks;
    const int8_t* digits = a.digits + block * kInt4Block;
    Shorts products[kFours];
#pragma GCC unroll 4
    for (int r = 0; r < kFours; ++r) {
      const uint8_t* codes = rows.codes[r] + block * (kInt4Block / 2);
      products[r] = vector_products(load_bytes(codes, live * (kInt4Block / 2)), digits);
    }
    const Shorts folded = fold_pieces(products[0], products[1], products[2], products[3]);
    const Vec<float> scale = load_fours(rows.scales, block, live);
    const Vec<float> zero = load_fours(rows.zeros, block, live);
    rest += (zero + scale * float{kCodeMiddle}) * spread_fours<Vec<float>>(a.sums + block, 1);
    rest += from_codes(spread_fours<Integers>(start, kFours) + add_pairs(folded)) *
            spread_fours<Vec<float>>(steps, kFours) * scale;
  }
  rest += fold_pieces(totals[0], totals[1], totals[2], totals[3]);
  if constexpr (lanes > 2 * kFours) {
    rest = fold<2 * kFours>(rest, rest);
  }
  rest = fold<kFours>(rest, rest);
  __builtin_memcpy(out, &rest, kFours * sizeof(float));
}

// Whether a weight is multiplied so.
FUSEWHEEL_INLINE bool takes_fours(const LinearWeight& weight, const DigitRow& a) {
  return kBytes == 32 && choices().far_rows && !choices().vnni && a.planes == 1 &&
         weight.groups == weight.columns / kInt4Block && weight.scale_dtype != Dtype::kFloat64;
}

// Row `begin` of the weight and three more, each `apart` rows behind the one before, where there are `count`
// in all: the last one stands for those that are missing.
FUSEWHEEL_INLINE void dot_fours(const LinearWeight& weight, int64_t begin, int64_t apart,
                                int64_t count, const DigitRow& a, float* out) {
  for_dtype(weight.scale_dtype, [&](auto zero) {
    using S = decltype(zero);
    if constexpr (sizeof(Accumulate<S>) == sizeof(float)) {
      FourRows<S> rows;
      for (int i = 0; i < kFours; ++i) {
        const int64_t row = begin + (i < count ? i : count - 1) * apart;
        rows.codes[i] = static_cast<const uint8_t*>(weight.data) + row * weight.stride;
        rows.scales[i] = static_cast<const S*>(weight.scales) + row * weight.groups;
        rows.zeros[i] = static_cast<const S*>(weight.zeros) + row * weight.groups;
      }
      dot_fours<S>(rows, weight.groups, a, out);
    }
  });
}

#endif  // __AVX2__

}  // namespace fusewheel::FUSEWHEEL_ISA
