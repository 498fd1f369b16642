// One row of a against a weight in stored blocks: which way a kind goes.
#pragma once

#include "block_floats.h"
#include "block_scales.h"
#include "block_tables.h"

#if defined(__AVX2__)

namespace fusewheel::FUSEWHEEL_ISA {

// A row of Q8_0 times a, in floats: products of two bytes with a sign have no quick instruction.
__attribute__((noinline)) inline Vec<float> dot_bytes(const uint8_t* blocks, int64_t parts,
                                                      const float* a) {
  constexpr int bytes = block_format(BlockKind::kQ8_0).bytes;
  constexpr int vectors = kBlockPart / kLanes<float>;
  const bool twice = choices().prefetch;
  Vec<float> total = {};
  for (int64_t part = 0; part < parts; ++part, blocks += bytes, a += kBlockPart) {
    prefetch_blocks(blocks, bytes, twice);
    Vec<float> own = {};
#pragma GCC unroll 4
    for (int i = 0; i < vectors; ++i) {
      const auto* codes = reinterpret_cast<const int8_t*>(blocks + 2) + i * kLanes<float>;
      own += from_codes(load_codes(codes)) * load(a + i * kLanes<float>);
    }
    total += own * splat(converted_half(blocks));
  }
  return total;
}

// A row of codes times a, in integers, lane by lane.
template <BlockKind kind, int planes, bool vnni>
FUSEWHEEL_INLINE Vec<float> dot_codes(const uint8_t* blocks, int64_t columns, const BlockDigits* a,
                                      bool twice) {
  constexpr BlockFormat format = block_format(kind);
  constexpr int bytes = kSuperWeights / format.weights * format.bytes;
  Vec<float> total = {};
  const auto add = [&](auto live) FUSEWHEEL_INLINED {
    const Scales<kind> scales = [&] {
      if constexpr (has_sub_blocks(kind)) {
        return super_scales<kind>(blocks, *a, total);
      } else {
        return small_scales<kind>(blocks, live, *a, total);
      }
    }();
    // The step of a comes last: a scale times a step may be too small for a normal number.
    [[maybe_unused]] const Vec<float> step = splat(a->step);
    Vec<float> own_total = {};
#pragma GCC unroll 2
    for (int group = 0; group < kCodeGroups; ++group) {
      Bytes codes[kCodeVectors];
      if constexpr (has_sub_blocks(kind)) {
        super_codes<kind>(blocks, group, codes);
      } else if (first_block(group, 0) < live) {
        small_codes<kind>(blocks, group, live, codes);
      }
#pragma GCC unroll 2
      for (int pair = 0; pair < 2; ++pair) {
        if (!has_sub_blocks(kind) && first_block(group, pair) >= live) {
          continue;  // its digits are zeros
        }
        const int own = 2 * group + pair;
        Integers start;
        __builtin_memcpy(&start, a->start + own * kLanes<float>, sizeof(start));
        const Integers whole = pair_products<planes, vnni>(codes[2 * pair], codes[2 * pair + 1], *a,
                                                           own, start);
        const Vec<float> product = __builtin_convertvector(whole, Vec<float>);
        if constexpr (kind == BlockKind::kMXFP4) {
          // Its scales may be so large that the step comes first.
          total += product * step * scales.of(group, pair);
        } else {
          own_total += product * scales.of(group, pair);
        }
      }
    }
    if constexpr (kind != BlockKind::kMXFP4) {
      total += own_total * step;
    }
  };
  for (; columns >= kSuperWeights; columns -= kSuperWeights, blocks += bytes, ++a) {
    prefetch_blocks(blocks, bytes, twice);
    add(Constant<kSuperParts>{});
  }
  if constexpr (!has_sub_blocks(kind)) {
    // Of usual widths an even number of blocks is left: 2 of 576, 4 of 896 columns.
    switch (columns / kBlockPart) {
      case 0: break;
      case 2: add(Constant<2>{}); break;
      case 4: add(Constant<4>{}); break;
      case 6: add(Constant<6>{}); break;
      default: add(columns / kBlockPart);
    }
  }
  return total;
}

// The sums of lanes of row(r) for `count` rows.
template <typename Row>
FUSEWHEEL_INLINE void sums_of_rows(int64_t count, float* out, Row row) {
  constexpr int lanes = kLanes<float>;
  for (int64_t r = 0; r < count; r += lanes) {
    const int64_t live = count - r < lanes ? count - r : lanes;
    Vec<float> totals[lanes] = {};
    for (int64_t i = 0; i < live; ++i) {
      totals[i] = row(r + i);
    }
    store(out + r, sums_of<float>(totals), live);
  }
}

// Rows of codes, `stride` bytes apart, times a.
template <BlockKind kind, int planes, bool vnni>
__attribute__((noinline)) void dot_code_rows(const uint8_t* first, int64_t stride, int64_t count,
                                             int64_t columns, const BlockDigits* a, float* out) {
  const bool twice = choices().prefetch;
  sums_of_rows(count, out, [&](int64_t r) FUSEWHEEL_INLINED {
    return dot_codes<kind, planes, vnni>(first + r * stride, columns, a, twice);
  });
}

template <BlockKind kind>
FUSEWHEEL_INLINE auto code_rows_of(int planes, bool vnni) {
  if (vnni) {
    return planes == 2 ? dot_code_rows<kind, 2, true> : dot_code_rows<kind, 3, true>;
  }
  return planes == 2 ? dot_code_rows<kind, 2, false> : dot_code_rows<kind, 3, false>;
}

// `count` rows of the weight from `begin`, one after another: the processor reads
// memory fastest in one stream (two rows side by side took twice as long on an AMD EPYC Zen 4).
FUSEWHEEL_INLINE void dot_blocks(const LinearWeight& weight, int64_t begin, int64_t count,
                                 const float* floats, const BlockDigits* a, int planes,
                                 float* out) {
  const int64_t stride = weight.stride;
  const int64_t columns = weight.columns;
  const uint8_t* first = static_cast<const uint8_t*>(weight.data) + begin * stride;
  for_block_kind(weight.blocks.kind, [&](auto decoder) {
    constexpr BlockKind kind = decltype(decoder)::kKind;
    const int64_t blocks = columns / decltype(decoder)::kWeights;
    if constexpr (kind == BlockKind::kQ8_0) {
      sums_of_rows(count, out,
                   [&](int64_t r) { return dot_bytes(first + r * stride, blocks, floats); });
    } else if constexpr (looks_up(kind)) {
      const auto* ordered = reinterpret_cast<const float*>(a);
      sums_of_rows(count, out, [&](int64_t r) {
        return dot_table<kind>(first + r * stride, blocks, ordered);
      });
    } else if constexpr (has_float_codes(kind)) {
      sums_of_rows(count, out, [&](int64_t r) {
        return dot_float_codes<kind>(first + r * stride, blocks, floats);
      });
    } else {
      static_assert(has_small_codes(kind), "every kind has a way");
      code_rows_of<kind>(planes, choices().vnni)(first, stride, count, columns, a, out);
    }
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX2__
