// What the kernels of attention_decode are given.
#pragma once

#include <fusewheel/attention/attention_decode_args.h>

namespace fusewheel {

// The lengths and the pages of sequences stay in the GPU's memory, so nobody has checked them.
struct DecodeCall {
  DecodeArgs args;
  const void* lengths;  // [batch]
  int64_t lengths_stride;
  bool lengths_are_long;  // int64_t, else int32_t
  int64_t pages;          // that the cache has
  int64_t parts;          // of kDecodePart keys, of a sequence that fills its room
  // [batch, parts, heads, queries, kPartHead + value size], in the dtype of computation
  void* found;
};

// What a part has found for a query: the largest score, the sum of exponentials relative to it, and
// NaN if the query sees a value that is not finite, 0 otherwise. The sums of values follow.
constexpr int kPartPeak = 0;
constexpr int kPartTotal = 1;
constexpr int kPartOdd = 2;
constexpr int kPartHead = 3;

void attention_decode_launch(const DecodeCall&, Stream);

}  // namespace fusewheel
