// Attention of sequences of different lengths, packed one after the other, and the gradients

#include <fusewheel/attention/attention_varlen.h>
#include <fusewheel/kernel.h>

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor> attention_varlen(const Tensor& q, const Tensor& k, const Tensor& v,
                                            const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                                            const std::optional<Tensor>& sinks, int64_t left,
                                            int64_t right, double scale, double softcap) {
  AttentionVarlen call("attention_varlen", q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, left, right,
                       scale, softcap);
  call.allocate(q);
  run("attention_varlen", attention_varlen_launch, call.args, q);
  return {call.out, call.logsumexp};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_varlen_backward(
    const Tensor& grad, const Tensor& grad_logsumexp, const Tensor& q, const Tensor& k,
    const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
    const std::optional<Tensor>& sinks, const Tensor& out, const Tensor& logsumexp, int64_t left,
    int64_t right, double scale, double softcap) {
  const AttentionVarlenBackward call("attention_varlen_backward", grad, grad_logsumexp, q, k, v,
                                     cu_seqlens_q, cu_seqlens_k, sinks, out, logsumexp, left, right,
                                     scale, softcap);
  run("attention_varlen_backward", attention_varlen_backward_launch, call.args, q);
  return {call.grad_q, call.grad_k, call.grad_v, call.grad_sinks};
}

FUSEWHEEL_KERNELS(library) {
  kernel<attention_varlen>(library, "attention_varlen");
  kernel<attention_varlen_backward>(library, "attention_varlen_backward");
}

}  // namespace
}  // namespace fusewheel
