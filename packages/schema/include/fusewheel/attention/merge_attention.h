// Arguments of merge_attention, checked the same way for every backend.
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

}  // namespace fusewheel

#if FUSEWHEEL_GLUE

#include <fusewheel/elementwise.h>
#include <fusewheel/rows.h>

namespace fusewheel {

// A checked call; owns the tensors its arguments point into.
template <int operands>
struct MergeCall {
  std::array<Tensor, operands> tensors;
  MergeArgs<operands> args;

 protected:
  MergeCall(const char* op, const Tensor& out, const Tensor& logsumexp, const Tensor& other,
            const Tensor& other_logsumexp)
      : args{} {
    const Argument first{"out", out};
    check_rows(op, first);
    check_statistic(op, {"logsumexp", logsumexp}, out);
    check_same(op, {"other", other}, first);
    check_statistic(op, {"other_logsumexp", other_logsumexp}, out);
    tensors[kOut] = readable(out);
    tensors[kLogsumexp] = logsumexp;
    tensors[kOther] = readable(other);
    tensors[kOtherLogsumexp] = other_logsumexp;
  }

  static Tensor readable(const Tensor& rows) {
    const auto last = rows.dim() - 1;
    return rows.strides()[last] == 1 || rows.sizes()[last] <= 1 ? rows : as_contiguous(rows);
  }

  static Tensor empty_statistic(const Tensor& rows) {
    return empty_contiguous(leading_sizes(rows), accumulate_type(rows), rows);
  }

  // Once all tensors are there; those of `written` are visited in the order of its memory.
  void finish(const char* op, MergeOperand written) {
    const Tensor& rows = tensors[kOut];
    Broadcast<operands> shapes;
    shapes.dims = rows.dim() - 1;
    for (int64_t i = 0; i < shapes.dims; ++i) {
      shapes.sizes[i] = rows.sizes()[i];
      shapes.output_strides[i] = tensors[written].strides()[i];
      for (int k = 0; k < operands; ++k) {
        shapes.strides[k][i] = tensors[k].strides()[i];
      }
    }
    args.rows = merge<0>(op, shapes);
    for (int k = 0; k < operands; ++k) {
      args.data[k] = const_cast<void*>(tensors[k].const_data_ptr());
    }
    args.size = rows.sizes()[shapes.dims];
    args.dtype = dtype_of(rows);
  }
};

struct MergeAttention : MergeCall<kMergeOperands> {
  MergeAttention(const char* op, const Tensor& out, const Tensor& logsumexp, const Tensor& other,
                 const Tensor& other_logsumexp)
      : MergeCall(op, out, logsumexp, other, other_logsumexp) {
    tensors[kMerged] = empty_rows(out);
    tensors[kMergedLogsumexp] = empty_statistic(out);
    finish(op, kMerged);
  }
};

struct MergeAttentionBackward : MergeCall<kMergeBackwardOperands> {
  MergeAttentionBackward(const char* op, const Tensor& grad_merged,
                         const Tensor& grad_merged_logsumexp, const Tensor& out,
                         const Tensor& logsumexp, const Tensor& other,
                         const Tensor& other_logsumexp)
      : MergeCall(op, out, logsumexp, other, other_logsumexp) {
    check_same(op, {"grad_merged", grad_merged}, {"out", out});
    check_statistic(op, {"grad_merged_logsumexp", grad_merged_logsumexp}, out);
    tensors[kMerged] = readable(grad_merged);
    tensors[kMergedLogsumexp] = grad_merged_logsumexp;
    tensors[kGradOut] = empty_rows(out);
    tensors[kGradLogsumexp] = empty_statistic(out);
    tensors[kGradOther] = empty_rows(other);
    tensors[kGradOtherLogsumexp] = empty_statistic(out);
    finish(op, kGradOut);
  }
};

}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
