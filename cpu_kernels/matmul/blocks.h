// A stretch of one row of a weight that is stored in blocks, as numbers.
#pragma once

#include <fusewheel/linear/linear_args.h>

#include "codes.h"

#define FUSEWHEEL_DECODER FUSEWHEEL_INLINE
#include <fusewheel/linear/block_decode.h>

namespace fusewheel::FUSEWHEEL_ISA {

constexpr bool has_table(BlockKind kind) {
  return kind == BlockKind::kNF4 || kind == BlockKind::kFP4 || kind == BlockKind::kIQ4_NL ||
         kind == BlockKind::kMXFP4;
}

// Part `part` of a block; like Decoder::decode, which looks numbers up in memory one by one.
template <typename Decoder>
FUSEWHEEL_INLINE void decode_part(const uint8_t* block, int part, float* to) {
#if defined(__AVX2__)
  constexpr BlockKind kind = Decoder::kKind;
  if constexpr (has_table(kind)) {
    constexpr int lanes = kLanes<float>;
    Vec<float> table[16 / lanes];
    for (int i = 0; i < 16; ++i) {
      table[i / lanes][i % lanes] = BlockTable<kind>::at(i);
    }
    const auto look_up = [&](Integers code) {
      if constexpr (lanes == 16) {
        return shuffle(table[0], code);
      } else {
        return shuffle(table[0], table[1], code);
      }
    };
    constexpr bool is_half = kind == BlockKind::kIQ4_NL;
    constexpr bool is_power = kind == BlockKind::kMXFP4;
    const float scale = is_half ? half_at(block) : is_power ? power_at(block) : float_at(block);
    const uint8_t* codes = block + (is_half ? 2 : is_power ? 1 : 4) + part * (kBlockPart / 2);
    for (int i = 0; i < kBlockPart / 2; i += lanes) {
      const Integers pair = load_codes(codes + i);
      store(to + i, look_up(pair & 15) * scale);
      store(to + kBlockPart / 2 + i, look_up(pair >> 4) * scale);
    }
    return;
  }
#endif
  Decoder::decode(block, part, to);
}

// Elements [begin, begin + count) of a row, both multiples of kBlockPart.
__attribute__((noinline)) inline void decode_blocks(const LinearWeight& weight, int64_t row,
                                                    int64_t begin, int64_t count, float* to) {
  const uint8_t* start = static_cast<const uint8_t*>(weight.data) + row * weight.stride;
  for_block_kind(weight.blocks.kind, [&](auto decoder) {
    using Decoder = decltype(decoder);
    for (int64_t i = 0; i < count; i += kBlockPart) {
      const int64_t k = begin + i;
      const uint8_t* block = start + k / Decoder::kWeights * Decoder::kBytes;
      decode_part<Decoder>(block, static_cast<int>(k % Decoder::kWeights / kBlockPart), to + i);
    }
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA
