// Attention to the keys of two parts, given attention to those of either, row by row

#include <fusewheel/attention/merge_attention.h>
#include <fusewheel/kernel.h>

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor> merge_attention(const Tensor& out, const Tensor& logsumexp,
                                           const Tensor& other, const Tensor& other_logsumexp) {
  const MergeAttention call("merge_attention", out, logsumexp, other, other_logsumexp);
  if (call.args.rows.numel > 0) {
    run("merge_attention", merge_attention_launch, call.args, out);
  }
  return {call.tensors[kMerged], call.tensors[kMergedLogsumexp]};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> merge_attention_backward(
    const Tensor& grad_merged, const Tensor& grad_merged_logsumexp, const Tensor& out,
    const Tensor& logsumexp, const Tensor& other, const Tensor& other_logsumexp) {
  const MergeAttentionBackward call("merge_attention_backward", grad_merged, grad_merged_logsumexp,
                                    out, logsumexp, other, other_logsumexp);
  if (call.args.rows.numel > 0) {
    run("merge_attention_backward", merge_attention_backward_launch, call.args, out);
  }
  return {call.tensors[kGradOut], call.tensors[kGradLogsumexp], call.tensors[kGradOther],
          call.tensors[kGradOtherLogsumexp]};
}

FUSEWHEEL_KERNELS(library) {
  kernel<merge_attention>(library, "merge_attention");
  kernel<merge_attention_backward>(library, "merge_attention_backward");
}

}  // namespace
}  // namespace fusewheel
