// Cross entropy of a row's logits and its class

#include <fusewheel/kernel.h>
#include <fusewheel/loss/cross_entropy.h>

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor, Tensor> cross_entropy(const Tensor& logits, const Tensor& target,
                                                 const std::optional<Tensor>& weight,
                                                 int64_t ignore_index, double label_smoothing,
                                                 double z_loss, double softcap, bool needs_grad,
                                                 const std::optional<Tensor>& grad) {
  const CrossEntropy call(logits, target, weight, ignore_index, label_smoothing, z_loss, softcap,
                          needs_grad, grad);
  check_targets("cross_entropy", call.target, call.args.classes, ignore_index);
  if (call.args.count > 0) {
    run("cross_entropy", cross_entropy_launch, call.args, logits);
  }
  return {call.loss, call.logsumexp, call.grad};
}

Tensor cross_entropy_backward(const Tensor& grad, const Tensor& grad_logits) {
  const CrossEntropyBackward call(grad, grad_logits);
  if (call.args.count > 0) {
    run("cross_entropy_backward", cross_entropy_backward_launch, call.args, grad_logits);
  }
  return call.grad;
}

FUSEWHEEL_KERNELS(library) {
  kernel<cross_entropy>(library, "cross_entropy");
  kernel<cross_entropy_backward>(library, "cross_entropy_backward");
}

}  // namespace
}  // namespace fusewheel
