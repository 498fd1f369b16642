// Where packed sequences begin and end.
#pragma once

#include <fusewheel/attention/attention_varlen_args.h>

namespace fusewheel {

// Sequences that are packed together, as a kernel before has read them. Without any, each of the
// batch is one.
struct PackedSequences {
  int64_t count = 0;
  const Sequence* sequences = nullptr;
  const int64_t* tiles = nullptr;  // [count + 1]: tiles of rows of all sequences before
  const bool* wrong = nullptr;     // whether the bounds are no bounds
};

struct PackedRows {
  PackedSequences queries;
  PackedSequences keys;
};

// Reads them on the device: the processor waits for nothing.
PackedRows launch_packing(const char* op, const Packing& packing, const AttentionShape& shape,
                          Stream stream);

}  // namespace fusewheel
