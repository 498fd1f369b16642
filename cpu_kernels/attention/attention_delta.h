// What the gradients of attention need for each query, and what is summed over the queries.
#pragma once

#include <fusewheel/attention/attention.h>

#include "isa.h"

// dot(grad, out) - grad_logsumexp of heads [begin, end), those of all sequences in a row
FUSEWHEEL_DECLARE(void attention_delta(const AttentionBackwardArgs&, int64_t, int64_t));
// Gradients of the sinks of heads [begin, end)
FUSEWHEEL_DECLARE(void attention_grad_sinks(const AttentionBackwardArgs&, int64_t, int64_t));
