// What the kernels of attention of packed sequences are given.
#pragma once

#include <fusewheel/attention/attention_args.h>

namespace fusewheel {

// One of the sequences that are packed together: where it begins, and how long it is.
struct Sequence {
  int64_t query;
  int64_t queries;
  int64_t key;
  int64_t keys;
};

// The sums of the lengths of the sequences so far: one number more than there are sequences.
struct Bounds {
  const void* data;
  int64_t stride;
  bool is_long;  // int64_t, else int32_t
};

// On a GPU the numbers in `queries` and `keys` are not read before a kernel runs, so there is no list
// of sequences, and nobody has checked the numbers.
struct Packing {
  int64_t count;  // of sequences
  const Sequence* sequences;  // on a CPU
  Bounds queries;             // on a GPU
  Bounds keys;
  void* scratch;  // packing_scratch_bytes(count) of them, on the device
};

// `all` is a single sequence of all tokens.
struct AttentionVarlenArgs {
  AttentionArgs all;
  Packing packing;
};

struct AttentionVarlenBackwardArgs {
  AttentionBackwardArgs all;
  Packing packing;
};

// Each kernel library has its own.
int64_t packing_scratch_bytes(int64_t sequences);
void attention_varlen_launch(const AttentionVarlenArgs&, Stream);
void attention_varlen_backward_launch(const AttentionVarlenBackwardArgs&, Stream);

}  // namespace fusewheel
