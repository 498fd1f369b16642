// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), row by row

#include <fusewheel/kernel.h>
#include <fusewheel/norm/rms_norm.h>

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, const Tensor& weight, double eps,
                                    int64_t cast) {
  const RmsNorm call("rms_norm", {"x", x}, weight, eps, cast);
  run("rms_norm", rms_norm_launch, call.args, x);
  return {call.y, call.rstd};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& x,
                                             const Tensor& weight, const Tensor& rstd,
                                             int64_t cast) {
  const RmsNormBackward call("rms_norm_backward", grad, {"x", x}, weight, rstd, cast);
  if (call.args.size > 0) {
    run("rms_norm_backward", rms_norm_backward_launch, call.args, x);
  }
  return {call.grad_x, call.grad_weight};
}

FUSEWHEEL_KERNELS(library) {
  kernel<rms_norm>(library, "rms_norm");
  kernel<rms_norm_backward>(library, "rms_norm_backward");
}

}  // namespace
}  // namespace fusewheel
