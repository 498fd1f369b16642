// A cache of keys or values that grows without a copy of the rows that are there.
//
// A cache [B, H, rows, D] lies in a room, an allocation [capacity, B, H, D] with a trailer behind it,
// which says how many rows are taken. Rows that are taken never change. Of several calls that continue
// the same rows one takes the rows behind them; the others copy.
//
// Each result is a copy-on-write tensor over the memory of its room: who writes to it in place gets
// memory of its own. The last tensor over some memory may be written to without a copy, so there is a
// second result: another tensor over the memory of a new room, which is kept as long as somebody has rows
// in the room. Where no new room was needed, it is the first result again.
#pragma once

#include <torch/csrc/stable/c/shim.h>

namespace fusewheel::engine {

// (Tensor past, Tensor new) -> (Tensor rows, Tensor kept): torch.cat([past, new], 2), twice.
// `past` may be an empty tensor of one dimension.
void append_step(StableIValue* stack, uint64_t, uint64_t);

}  // namespace fusewheel::engine
