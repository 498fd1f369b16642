// What the kernels of merge_attention are given: plain data, no torch.
//
// A part is attention to some keys, with the logarithm of its sum of exponentials. Its share of the
// whole is exp(logsumexp - total), total = logaddexp of the two. A part of logsumexp -inf has seen no
// key: its share and its gradients are 0, whatever it holds.
#pragma once

#include <fusewheel/geometry.h>

namespace fusewheel {

// What has a value, or a row of values, for every query: first what both passes read.
enum MergeOperand : int {
  kOut,
  kLogsumexp,
  kOther,
  kOtherLogsumexp,
  kMerged,  // the result, and in the backward pass its gradient
  kMergedLogsumexp,
  kMergeOperands,
  kGradOut = kMergeOperands,
  kGradLogsumexp,
  kGradOther,
  kGradOtherLogsumexp,
  kMergeBackwardOperands
};

template <int operands>
struct MergeArgs {
  Geometry<operands> rows;  // where each row begins
  void* data[operands];
  int64_t size;  // of a row, whose elements are contiguous
  Dtype dtype;   // of the rows; single values have the one of computation
};

using MergeAttentionArgs = MergeArgs<kMergeOperands>;
using MergeAttentionBackwardArgs = MergeArgs<kMergeBackwardOperands>;

// Each kernel library has its own.
void merge_attention_launch(const MergeAttentionArgs&, Stream);
void merge_attention_backward_launch(const MergeAttentionBackwardArgs&, Stream);

}  // namespace fusewheel
