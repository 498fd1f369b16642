// How the forward of attention is divided into tasks: some heads that read the same keys, and some
// positions.
#pragma once

#include "scores.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Rows of one task: as many as stay in the second-level cache together with what they meet.
constexpr int64_t kTaskRows = 384;
constexpr int64_t kTaskHeads = 8;

struct Division {
  int64_t heads;      // of a task
  int64_t positions;  // of a task, a multiple of `step`
  int64_t head_parts;
  int64_t position_parts;

  Division(const AttentionShape& shape, int64_t step) {
    const int64_t group = shape.heads / shape.kv_heads;
    head_parts = blocks_of(group, kTaskHeads);
    heads = blocks_of(group, head_parts);
    positions = kTaskRows / heads < step ? step : kTaskRows / heads / step * step;
    position_parts = blocks_of(shape.queries, positions);
  }

  int64_t tasks(const AttentionShape& shape) const {
    return shape.batch * shape.kv_heads * head_parts * position_parts;
  }
};

// The rows of a task.
struct Place {
  int64_t batch;
  int64_t kv_head;
  int64_t first_head;
  int64_t heads;
  int64_t first;  // position
  int64_t positions;

  // Under a causal mask the last positions have the most work: they begin.
  Place(const AttentionShape& shape, const Division& division, int64_t index) {
    const int64_t beside = division.tasks(shape) / division.position_parts;
    first = (division.position_parts - 1 - index / beside) * division.positions;
    const int64_t part = index % beside % division.head_parts;
    kv_head = index % beside / division.head_parts % shape.kv_heads;
    batch = index % beside / division.head_parts / shape.kv_heads;
    const int64_t group = shape.heads / shape.kv_heads;
    first_head = kv_head * group + part * division.heads;
    heads = (part + 1) * division.heads < group ? division.heads : group - part * division.heads;
    const int64_t left = shape.queries - first;
    positions = left < division.positions ? left : division.positions;
  }
};

}  // namespace fusewheel::FUSEWHEEL_ISA
