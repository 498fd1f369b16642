// The kernels of attention, which the operators divide among the threads.
#pragma once

#include <fusewheel/attention/attention_args.h>

#include "isa.h"

FUSEWHEEL_DECLARE(AttentionPlan attention_plan(const AttentionShape&));
FUSEWHEEL_DECLARE(void attention_task(const AttentionArgs&, int64_t, void*));

// Of heads [begin, end), those of all sequences in a row.
FUSEWHEEL_DECLARE(void attention_delta(const AttentionBackwardArgs&, int64_t, int64_t));
FUSEWHEEL_DECLARE(AttentionPlan attention_backward_plan(const AttentionShape&));
FUSEWHEEL_DECLARE(void attention_backward_task(const AttentionBackwardArgs&, int64_t, void*));
// Of heads [begin, end).
FUSEWHEEL_DECLARE(void attention_grad_sinks(const AttentionBackwardArgs&, int64_t, int64_t));
