// sum = x + residual, y = rms_norm(sum), row by row

#include <fusewheel/norm/add_rms_norm.h>

#include "add_rows.h"
#include "rms_norm.h"

FUSEWHEEL_DECLARE(void add_rms_norm_rows(const AddRmsNormArgs&, int64_t, int64_t));
FUSEWHEEL_DECLARE(void add_rms_norm_backward_chunks(const AddRmsNormBackwardArgs&, int64_t,
                                                    int64_t));

namespace fusewheel::FUSEWHEEL_ISA {

void add_rms_norm_rows(const AddRmsNormArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.norm.dtype, [&](auto zero) {
    using T = decltype(zero);
    rms_norm_forward<T>(args.norm, begin, end, sum_of_rows<T>(args.add));
  });
}

void add_rms_norm_backward_chunks(const AddRmsNormBackwardArgs& args, int64_t begin,
                                  int64_t end) {
  for_dtype(args.norm.dtype, [&](auto zero) {
    using T = decltype(zero);
    rms_norm_backward<T>(args.norm, begin, end, plus_rows<T>(args.add));
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include "parallel.h"

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual,
                                                const Tensor& weight, double eps, int64_t cast) {
  const AddRmsNorm call("add_rms_norm", x, residual, weight, eps, cast);
  const auto& norm = call.args.norm;
  parallel_rows(FUSEWHEEL_SELECT(add_rms_norm_rows), call.args, norm.count, norm.size);
  return {call.norm.y, call.add.sum, call.norm.rstd};
}

std::tuple<Tensor, Tensor> add_rms_norm_backward(const Tensor& grad, const Tensor& grad_sum,
                                                 const Tensor& sum, const Tensor& weight,
                                                 const Tensor& rstd, int64_t cast) {
  const AddRmsNormBackward call("add_rms_norm_backward", grad, grad_sum, sum, weight, rstd, cast);
  const auto& norm = call.args.norm;
  parallel_chunks(FUSEWHEEL_SELECT(add_rms_norm_backward_chunks), call.args, norm.chunks,
                  norm.count * norm.size);
  parallel_columns(FUSEWHEEL_SELECT(rms_norm_weight_columns), norm, norm.size, norm.chunks);
  return {call.norm.grad_x, call.norm.grad_weight};
}

FUSEWHEEL_KERNELS(library) {
  kernel<add_rms_norm>(library, "add_rms_norm");
  kernel<add_rms_norm_backward>(library, "add_rms_norm_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
