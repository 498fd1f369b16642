// One row of a against a weight in stored blocks: which way a kind goes.
#pragma once

#include "block_floats.h"
#include "block_smalls.h"
#include "block_supers.h"

#if defined(__AVX2__)

namespace fusewheel::FUSEWHEEL_ISA {

// A row of Q8_0 times a, in floats: products of two bytes with a sign have no quick instruction.
__attribute__((noinline)) inline float dot_bytes(const uint8_t* blocks, int64_t parts,
                                                 const float* a) {
  constexpr int bytes = block_format(BlockKind::kQ8_0).bytes;
  constexpr int vectors = kBlockPart / kLanes<float>;
  Vec<float> total = {};
  for (int64_t part = 0; part < parts; ++part, blocks += bytes, a += kBlockPart) {
    __builtin_prefetch(blocks + kPrefetchAhead);
    Vec<float> own = {};
#pragma GCC unroll 4
    for (int i = 0; i < vectors; ++i) {
      const auto* codes = reinterpret_cast<const int8_t*>(blocks + 2) + i * kLanes<float>;
      own += from_codes(load_codes(codes)) * load(a + i * kLanes<float>);
    }
    total += own * splat(converted_half(blocks));
  }
  return sum<float>(total);
}

template <BlockKind kind, int planes, bool vnni>
__attribute__((noinline)) float dot_block_row(const uint8_t* row, int64_t columns,
                                              const BlockDigits* a) {
  if constexpr (has_sub_blocks(kind)) {
    return dot_supers<kind, planes, vnni>(row, columns / kSuperWeights, a);
  } else {
    return dot_smalls<kind, planes, vnni>(row, columns / kBlockPart, a);
  }
}

template <BlockKind kind>
FUSEWHEEL_INLINE auto block_row(int planes, bool vnni) {
  if (vnni) {
    return planes == 2 ? dot_block_row<kind, 2, true> : dot_block_row<kind, 3, true>;
  }
  return planes == 2 ? dot_block_row<kind, 2, false> : dot_block_row<kind, 3, false>;
}

// `count` rows of the weight from `begin`, one after another: the processor reads
// memory fastest in one stream (two rows side by side took twice as long on an AMD EPYC Zen 4).
FUSEWHEEL_INLINE void dot_blocks(const LinearWeight& weight, int64_t begin, int64_t count,
                                 const float* floats, const BlockDigits* a, int planes,
                                 float* out) {
  const uint8_t* row = static_cast<const uint8_t*>(weight.data) + begin * weight.stride;
  if (weight.blocks.kind == BlockKind::kQ8_0) {
    for (int64_t r = 0; r < count; ++r, row += weight.stride) {
      out[r] = dot_bytes(row, weight.columns / kBlockPart, floats);
    }
    return;
  }
  for_block_kind(weight.blocks.kind, [&](auto decoder) {
    constexpr BlockKind kind = decltype(decoder)::kKind;
#if defined(__AVX512F__)
    if constexpr (takes_words(kind)) {
      const auto* ordered = reinterpret_cast<const float*>(a);
      for (int64_t r = 0; r < count; ++r, row += weight.stride) {
        out[r] = dot_words<kind>(row, weight.columns / decltype(decoder)::kWeights, ordered);
      }
      return;
    }
#endif
    if constexpr (has_float_codes(kind)) {
      for (int64_t r = 0; r < count; ++r, row += weight.stride) {
        out[r] = dot_float_codes<kind>(row, weight.columns / decltype(decoder)::kWeights, floats);
      }
    } else if constexpr (has_small_codes(kind)) {
      const auto dot = block_row<kind>(planes, choices().vnni);
      for (int64_t r = 0; r < count; ++r, row += weight.stride) {
        out[r] = dot(row, weight.columns, a);
      }
    }
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX2__
