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

#if defined(__AVX2__)
// A float16 number, by the instruction for it.
FUSEWHEEL_INLINE float converted_half(const uint8_t* at) {
  uint16_t bits;
  __builtin_memcpy(&bits, at, sizeof(bits));
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

// The 16 numbers that the codes of a kind stand for, in registers.
template <BlockKind kind>
struct CodeTable {
  Vec<float> numbers[16 / kLanes<float>];

  FUSEWHEEL_INLINE CodeTable() {
    if constexpr (has_table(kind)) {
      for (int i = 0; i < 16; ++i) {
        numbers[i / kLanes<float>][i % kLanes<float>] = BlockTable<kind>::at(i);
      }
    }
  }

  FUSEWHEEL_INLINE Vec<float> look_up(Integers code) const {
    if constexpr (kLanes<float> == 16) {
      return shuffle(numbers[0], code);
    } else {
      return shuffle(numbers[0], numbers[1], code);
    }
  }
};
#endif

// Part `part` of a block; like Decoder::decode, which looks numbers up in memory one by one.
template <typename Decoder>
FUSEWHEEL_INLINE void decode_part(const uint8_t* block, int part, float* to) {
#if defined(__AVX2__)
  constexpr BlockKind kind = Decoder::kKind;
  if constexpr (has_table(kind)) {
    constexpr int lanes = kLanes<float>;
    const CodeTable<kind> table;
    constexpr bool is_half = kind == BlockKind::kIQ4_NL;
    constexpr bool is_power = kind == BlockKind::kMXFP4;
    const float scale = is_half ? half_at(block) : is_power ? power_at(block) : float_at(block);
    const uint8_t* codes = block + (is_half ? 2 : is_power ? 1 : 4) + part * (kBlockPart / 2);
    for (int i = 0; i < kBlockPart / 2; i += lanes) {
      const Integers pair = load_codes(codes + i);
      store(to + i, table.look_up(pair & 15) * scale);
      store(to + kBlockPart / 2 + i, table.look_up(pair >> 4) * scale);
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
