// sum = x + residual, y = rms_norm(sum), row by row

#include <fusewheel/kernel.h>
#include <fusewheel/norm/add_rms_norm.h>

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual,
                                                const Tensor& weight, double eps, int64_t cast) {
  const AddRmsNorm call("add_rms_norm", x, residual, weight, eps, cast);
  run("add_rms_norm", add_rms_norm_launch, call.args, x);
  return {call.norm.y, call.add.sum, call.norm.rstd};
}

std::tuple<Tensor, Tensor> add_rms_norm_backward(const Tensor& grad, const Tensor& grad_sum,
                                                 const Tensor& sum, const Tensor& weight,
                                                 const Tensor& rstd, int64_t cast) {
  const AddRmsNormBackward call("add_rms_norm_backward", grad, grad_sum, sum, weight, rstd, cast);
  if (call.args.norm.size > 0) {
    run("add_rms_norm_backward", add_rms_norm_backward_launch, call.args, sum);
  }
  return {call.norm.grad_x, call.norm.grad_weight};
}

FUSEWHEEL_KERNELS(library) {
  kernel<add_rms_norm>(library, "add_rms_norm");
  kernel<add_rms_norm_backward>(library, "add_rms_norm_backward");
}

}  // namespace
}  // namespace fusewheel
