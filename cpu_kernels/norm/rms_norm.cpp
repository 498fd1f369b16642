// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), row by row

#include "rms_norm.h"

FUSEWHEEL_DECLARE(void rms_norm_rows(const RmsNormArgs&, int64_t, int64_t));
FUSEWHEEL_DECLARE(void rms_norm_backward_chunks(const RmsNormBackwardArgs&, int64_t, int64_t));

namespace fusewheel::FUSEWHEEL_ISA {

void rms_norm_rows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* x = static_cast<const T*>(args.x);
    rms_norm_forward<T>(args, begin, end, [&](int64_t row, int64_t i, int64_t live) {
      return load(x + row * args.x_stride + i, live);
    });
  });
}

void rms_norm_backward_chunks(const RmsNormBackwardArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    rms_norm_backward<decltype(zero)>(
        args, begin, end, [](int64_t, int64_t, int64_t, auto grad_x) { return grad_x; });
  });
}

void rms_norm_weight_columns(const RmsNormBackwardArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    sum_chunks<decltype(zero)>(args.partials, args.grad_weight, args.chunks, args.size, begin, end);
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include "parallel.h"

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, const Tensor& weight, double eps,
                                    int64_t cast) {
  const RmsNorm call("rms_norm", {"x", x}, weight, eps, cast);
  const auto& args = call.args;
  parallel_rows(FUSEWHEEL_SELECT(rms_norm_rows), args, args.count, args.size);
  return {call.y, call.rstd};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& x,
                                             const Tensor& weight, const Tensor& rstd,
                                             int64_t cast) {
  const RmsNormBackward call("rms_norm_backward", grad, {"x", x}, weight, rstd, cast);
  const auto& args = call.args;
  parallel_chunks(FUSEWHEEL_SELECT(rms_norm_backward_chunks), args, args.chunks,
                  args.count * args.size);
  parallel_columns(FUSEWHEEL_SELECT(rms_norm_weight_columns), args, args.size, args.chunks);
  return {call.grad_x, call.grad_weight};
}

FUSEWHEEL_KERNELS(library) {
  kernel<rms_norm>(library, "rms_norm");
  kernel<rms_norm_backward>(library, "rms_norm_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
