// The kernels of attention, which the operators divide among the threads.
#pragma once

#include <fusewheel/attention/attention_args.h>

#include "isa.h"

namespace fusewheel {

// How a kernel divides its work.
struct AttentionPlan {
  int64_t tasks;
  int64_t scratch_bytes;  // of a thread
  // Of the backward pass: what its tasks share.
  int64_t turns{};
  int64_t rests{};
};

// What the tasks of the backward pass share beside the arguments of the operator.
struct AttentionBackwardTasks : AttentionBackwardArgs {
  int32_t* turns;   // per block of queries: how many blocks of keys have added to its grad_q
  uint16_t* rests;  // of half types: the lower halves of sums in float32, whose upper ones are in grad_q
  void (*yield)();  // lets another thread run
};

}  // namespace fusewheel

FUSEWHEEL_DECLARE(AttentionPlan attention_plan(const AttentionShape&));
FUSEWHEEL_DECLARE(void attention_task(const AttentionArgs&, int64_t, void*));

// Of heads [begin, end), those of all sequences in a row.
FUSEWHEEL_DECLARE(void attention_delta(const AttentionBackwardArgs&, int64_t, int64_t));
FUSEWHEEL_DECLARE(AttentionPlan attention_backward_plan(const AttentionShape&));
FUSEWHEEL_DECLARE(void attention_backward_task(const AttentionBackwardTasks&, int64_t, void*));
// Of heads [begin, end).
FUSEWHEEL_DECLARE(void attention_grad_sinks(const AttentionBackwardArgs&, int64_t, int64_t));
