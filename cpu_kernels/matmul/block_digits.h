// One row of a against a weight in stored blocks, in integers. As digits.h, but for these: 256
// neighbouring elements of a share a step, because the blocks of K-quants do; and their digits stand in
// the order in which block_codes.h decodes a weight. Eight products are summed as integers, then become
// a float and meet a scale.
#pragma once

#include "digits.h"

#if defined(__AVX2__)

#include "block_codes.h"

namespace fusewheel::FUSEWHEEL_ISA {

constexpr int kMostBlockDigits = 3;
// Elements of a whose sum is wanted: those of the smallest sub-block.
constexpr int kSubWeights = 16;
constexpr int kSubs = kSuperWeights / kSubWeights;

// A row of a by digits, for each kSuperWeights elements, in the order of the codes.
struct alignas(64) BlockDigits {
  int8_t digits[kMostBlockDigits][kSuperWeights];  // the most significant first
  int32_t start[kSuperWeights / 8];                // of products, by what the codes are too much
  float subs[kSubs];                               // sums of kSubWeights elements of a
  float parts[kSuperParts];                        // likewise of kBlockPart, both in the order of scale_at
  float step;
};

// Asks for memory ahead of some blocks, of which `bytes` are read now: for as many bytes 4 KiB ahead, and
// with `twice`, choices().prefetch, for a line 8 KiB ahead, so that the hardware goes on in the next page.
// 4 KiB was the fastest distance of 1 to 8 KiB on an Intel Xeon of the fifth generation. On an AMD EPYC
// (Zen 3) 2 to 8 KiB were alike, and the line further ahead cost K-quants 15 %.
FUSEWHEEL_INLINE void prefetch_blocks(const uint8_t* blocks, int64_t bytes, bool twice) {
  constexpr int64_t kAhead = 4096;
  prefetch(blocks, kAhead, bytes);
  if (twice) {
    __builtin_prefetch(blocks + 2 * kAhead, 0, kSecondLevel);
  }
}

FUSEWHEEL_INLINE int64_t block_supers(int64_t columns) {
  return (columns + kSuperWeights - 1) / kSuperWeights;
}

// The magnitudes of up to kSuperWeights elements.
FUSEWHEEL_INLINE Block measure_super(const float* a, int64_t count) {
  Block all = {0, 0};
  for (int64_t i = 0; i < count; i += kBlockPart) {
    const Block one = measure_block(a + i);
    all.largest = one.largest > all.largest ? one.largest : all.largest;
    all.mean += one.mean * (static_cast<float>(kBlockPart) / static_cast<float>(count));
  }
  return all;
}

// As digits_for, over kSuperWeights elements.
FUSEWHEEL_INLINE int block_digits_for(const float* a, int64_t columns, Dtype dtype) {
  int digits = dtype == Dtype::kFloat32 ? 3 : 2;
  for (int64_t i = 0; i < columns; i += kSuperWeights) {
    const int64_t count = columns - i < kSuperWeights ? columns - i : kSuperWeights;
    const Block block = measure_super(a + i, count);
    if (!is_finite(block) || is_tiny(block)) {
      return 0;
    }
    if (block.largest > 16 * block.mean) {
      digits = 3;
    }
  }
  return digits;
}

// `start` and a pair of vectors of codes times the digits of a, in steps: eight products in each lane.
// They may be too large for 32 bits without the start, and are not with it.
template <int planes, bool vnni>
FUSEWHEEL_INLINE Integers pair_products(Bytes first, Bytes second, const BlockDigits& a, int pair,
                                        Integers start) {
  const auto digits = [&](int plane, int v) {
    return load_bytes(a.digits[plane] + (2 * pair + v) * kBytes);
  };
  constexpr int last = planes - 1;
  if constexpr (vnni) {
    // The last digits are summed apart, because each sum waits for the one before.
    Integers high = {};
#pragma GCC unroll 2
    for (int p = 0; p < last; ++p) {
      high = p == 0 ? high : high << 8;
      add_products(high, first, digits(p, 0));
      add_products(high, second, digits(p, 1));
    }
    add_products(start, first, digits(last, 0));
    add_products(start, second, digits(last, 1));
    return bit_cast<Integers>((bit_cast<Bits>(high) << 8) + bit_cast<Bits>(start));
  } else {
    Shorts sums[planes];
#pragma GCC unroll 3
    for (int p = 0; p < planes; ++p) {
      sums[p] = multiply_pairs(first, digits(p, 0)) + multiply_pairs(second, digits(p, 1));
    }
    Integers high = add_pairs(sums[0], planes == 3 ? 256 : 1);
    if constexpr (planes == 3) {
      high += add_pairs(sums[1]);
    }
    return bit_cast<Integers>((bit_cast<Bits>(high) << 8) + bit_cast<Bits>(add_pairs(sums[last])) +
                              bit_cast<Bits>(start));
  }
}

// For the codes of a kind.
template <BlockKind kind, int planes>
FUSEWHEEL_INLINE void to_block_digits(const float* a, int64_t count, BlockDigits& to) {
  constexpr int lanes = kLanes<float>;
  constexpr int vectors = kBlockPart / lanes;
  const float whole_steps = planes == 2 ? 32512.0f : 8323072.0f;
  const Rounding rounding = round_block(measure_super(a, count), whole_steps);
  to.step = rounding.step;
  alignas(64) int8_t digits[planes][kSuperWeights];
  Integers sums[kSubs] = {};
  for (int begin = 0; begin < kSuperWeights; begin += kBlockPart) {
    Integers whole[vectors] = {};
    for (int i = 0; i < vectors && begin < count; ++i) {
      whole[i] = nearest(load(a + begin + i * lanes) * rounding.inverse);
      sums[(begin + i * lanes) / kSubWeights] += whole[i];
    }
    for (int p = planes; p-- > 0;) {
      Integers taken[vectors];
      for (int i = 0; i < vectors; ++i) {
        taken[i] = take_digit(whole[i]);
      }
      store_bytes(digits[p] + begin, taken);
    }
  }
  float subs[kSubs];
  for (int i = 0; i < kSubs; i += lanes) {
    fold_all<lanes / 2>(sums + i);
    store(subs + i, __builtin_convertvector(sums[i], Vec<float>) * rounding.step);
  }
  for (int i = 0; i < scale_count(kind); ++i) {
    const int own = scale_at(kind, i);
    if constexpr (scale_count(kind) == kSubs) {
      to.subs[i] = subs[own];
    } else {
      to.parts[i] = subs[2 * own] + subs[2 * own + 1];
    }
  }
  for (int p = 0; p < planes; ++p) {
    int8_t* place = to.digits[p];
    for (int v = 0; v < kCodeGroups * kCodeVectors; ++v) {
      for (int piece = 0; piece < kPieces; ++piece, place += kPiece) {
        const int from = element_of(kind, v / kCodeVectors, v % kCodeVectors, piece);
        __builtin_memcpy(place, digits[p] + from, kPiece);
      }
    }
  }
  const Bytes centres = static_cast<int8_t>(centre_of(kind)) - Bytes{};
  for (int pair = 0; pair < 2 * kCodeGroups; ++pair) {
    const Integers start = -pair_products<planes, false>(centres, centres, to, pair, Integers{});
    __builtin_memcpy(to.start + pair * lanes, &start, sizeof(start));
  }
}

template <BlockKind kind, int planes>
__attribute__((noinline)) void to_all_digits(const float* a, int64_t columns, BlockDigits* to) {
  for (; columns > 0; columns -= kSuperWeights, a += kSuperWeights, ++to) {
    to_block_digits<kind, planes>(a, columns < kSuperWeights ? columns : kSuperWeights, *to);
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX2__
