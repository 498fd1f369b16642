// What attention in bfloat16 by matrix instructions is: its tasks, and how its rows lie.
#pragma once

#include "matmul/bfloat16_tile.h"
#include "tiles.h"

namespace fusewheel::FUSEWHEEL_ISA {

#if defined(__AVX512F__)
constexpr bool kHasAmx = true;
#else
constexpr bool kHasAmx = false;
#endif

// Whether attention of this shape is computed by the tasks below.
FUSEWHEEL_INLINE bool multiplies_bfloat16(const AttentionShape& shape) {
  return kHasAmx && shape.dtype == Dtype::kBFloat16 && (choices().amx || choices().bf16);
}

AttentionPlan bfloat16_attention_plan(const AttentionShape& shape);
void bfloat16_attention_task(const AttentionArgs& args, int64_t index, void* scratch);
AttentionPlan bfloat16_attention_backward_plan(const AttentionShape& shape);
void bfloat16_attention_backward_task(const AttentionBackwardTasks& args, int64_t index,
                                      void* scratch);

#if defined(__AVX512F__)

// Between rows of sums.
constexpr int64_t sum_stride(int64_t size) { return ((size + kTile - 1) / kTile | 1) * kTile; }

#endif  // __AVX512F__

}  // namespace fusewheel::FUSEWHEEL_ISA
