// One row of a times a weight in blocks whose codes stand for floating numbers, by a table or as 8-bit
// floats. A block's products are added up before they are scaled, so that no weight is written.
#pragma once

#include "blocks.h"

#if defined(__AVX2__)

namespace fusewheel::FUSEWHEEL_ISA {

// How far ahead of a block its row is asked for, in bytes.
constexpr int64_t kFloatsAhead = 1024;

constexpr bool has_float_codes(BlockKind kind) {
  return kind == BlockKind::kNF4 || kind == BlockKind::kFP4 || kind == BlockKind::kIQ4_NL ||
         kind == BlockKind::kFP8;
}

// Numbers of float8_e4m3fn; NaN is all ones.
FUSEWHEEL_INLINE Vec<float> from_float8(Integers code) {
  const Integers magnitude = code & 0x7f;
  const Integers is_small = magnitude < 8;
  const Integers small =
      bit_cast<Integers>(__builtin_convertvector(magnitude, Vec<float>) * 0x1p-9f);
  const Integers normal = (magnitude << 20) + (120 << 23);
  const Integers bits = (is_small & small) | (~is_small & normal) | (magnitude == 0x7f);
  return bit_cast<Vec<float>>(bits | (code & 0x80) << 24);
}

// `count` blocks of a row times a.
template <BlockKind kind>
__attribute__((noinline)) float dot_float_codes(const uint8_t* blocks, int64_t count,
                                                const float* a) {
  constexpr BlockFormat format = block_format(kind);
  constexpr int lanes = kLanes<float>;
  constexpr bool is_half = kind == BlockKind::kIQ4_NL;
  [[maybe_unused]] const CodeTable<kind> table;
  Vec<float> totals[2] = {};
  for (int64_t block = 0; block < count; ++block, blocks += format.bytes, a += format.weights) {
    __builtin_prefetch(blocks + kFloatsAhead);
    const uint8_t* codes = blocks + (is_half ? 2 : 4);
    Vec<float> sums[2] = {};
#pragma GCC unroll 2
    for (int part = 0; part < format.weights; part += kBlockPart) {
      if constexpr (kind == BlockKind::kFP8) {
#pragma GCC unroll 4
        for (int i = 0; i < kBlockPart; i += lanes) {
          sums[i / lanes % 2] += from_float8(load_codes(codes + part + i)) * load(a + part + i);
        }
      } else {
#pragma GCC unroll 2
        for (int i = 0; i < kBlockPart / 2; i += lanes) {
          const Integers pair = load_codes(codes + part / 2 + i);
          sums[0] += table.look_up(pair & 15) * load(a + part + i);
          sums[1] += table.look_up(pair >> 4) * load(a + part + kBlockPart / 2 + i);
        }
      }
    }
    const float scale = is_half ? half_at(blocks) : float_at(blocks);
    totals[block % 2] += (sums[0] + sums[1]) * splat(scale);
  }
  return sum<float>(totals[0] + totals[1]);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX2__
