// The kernels of attention_decode, which the operator divides among the threads.
#pragma once

#include <fusewheel/attention/attention_decode_args.h>

#include "isa.h"

FUSEWHEEL_DECLARE(DecodePlan attention_decode_plan(const DecodeShape&));
// Prepares the queries [begin, end), those of all heads and sequences in a row.
FUSEWHEEL_DECLARE(void attention_decode_prepare(const DecodeArgs&, int64_t, int64_t));
// A part of the keys of a sequence.
FUSEWHEEL_DECLARE(void attention_decode_task(const DecodeArgs&, int64_t, void*));
// The results of the queries [begin, end).
FUSEWHEEL_DECLARE(void attention_decode_merge(const DecodeArgs&, int64_t, int64_t));

namespace fusewheel::FUSEWHEEL_ISA {

// The first key that a query sees of a sequence of so many keys.
FUSEWHEEL_INLINE int64_t first_key(const DecodeShape& shape, int64_t length, int64_t query) {
  const int64_t at = query + length - shape.queries;
  return shape.left < 0 || at < shape.left ? 0 : at - shape.left;
}

}  // namespace fusewheel::FUSEWHEEL_ISA
