// Arguments of merge_attention, checked the same way for every backend.
#pragma once

#include <fusewheel/attention/merge_attention_args.h>
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
