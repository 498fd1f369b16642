// What products of bfloat16 by AMX or AVX512_BF16 want of their operands.
#pragma once

#include <fusewheel/linear/linear_args.h>

namespace fusewheel {

// Rows are multiplied by tiles of so many, and by steps of so many numbers; zeros fill the last ones.
constexpr int64_t kBFloat16Tile = 16;
constexpr int64_t kBFloat16Step = 32;

constexpr int64_t whole_steps(int64_t numbers) {
  return (numbers + kBFloat16Step - 1) / kBFloat16Step * kBFloat16Step;
}

inline bool is_bfloat16(const LinearWeight& weight) {
  return weight.kind == WeightKind::kFloating && weight.dtype == Dtype::kBFloat16;
}

}  // namespace fusewheel
