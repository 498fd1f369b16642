// Attention of queries to keys, with its logsumexp as a result, and the gradients of both

#include <fusewheel/attention/attention.h>
#include <fusewheel/kernel.h>

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const std::optional<Tensor>& sinks,
                                     const std::optional<Tensor>& bias, int64_t left, int64_t right,
                                     double scale, double softcap) {
  Attention call("attention", q, k, v, sinks, bias, left, right, scale, softcap);
  call.allocate(q);
  run("attention", attention_launch, call.args, q);
  return {call.out, call.logsumexp};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& grad_logsumexp, const Tensor& q, const Tensor& k,
    const Tensor& v, const std::optional<Tensor>& sinks, const std::optional<Tensor>& bias,
    const Tensor& out, const Tensor& logsumexp, int64_t left, int64_t right, double scale,
    double softcap) {
  const AttentionBackward call("attention_backward", grad, grad_logsumexp, q, k, v, sinks, bias,
                               out, logsumexp, left, right, scale, softcap);
  run("attention_backward", attention_backward_launch, call.args, q);
  return {call.grad_q, call.grad_k, call.grad_v, call.grad_sinks};
}

FUSEWHEEL_KERNELS(library) {
  kernel<attention>(library, "attention");
  kernel<attention_backward>(library, "attention_backward");
}

}  // namespace
}  // namespace fusewheel
