// sum = x + residual, y = layer_norm(sum), row by row

#include <fusewheel/norm/add_layer_norm.h>

#include "add_rows.h"
#include "layer_norm.h"

FUSEWHEEL_DECLARE(void add_layer_norm_rows(const AddLayerNormArgs&, int64_t, int64_t));
FUSEWHEEL_DECLARE(void add_layer_norm_backward_chunks(const AddLayerNormBackwardArgs&, int64_t,
                                                      int64_t));

namespace fusewheel::FUSEWHEEL_ISA {

void add_layer_norm_rows(const AddLayerNormArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.norm.dtype, [&](auto zero) {
    using T = decltype(zero);
    layer_norm_forward<T>(args.norm, begin, end, sum_of_rows<T>(args.add));
  });
}

void add_layer_norm_backward_chunks(const AddLayerNormBackwardArgs& args, int64_t begin,
                                    int64_t end) {
  for_dtype(args.norm.dtype, [&](auto zero) {
    using T = decltype(zero);
    layer_norm_backward<T>(args.norm, begin, end, plus_rows<T>(args.add));
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include "parallel.h"

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                                          const OptionalTensor& weight,
                                                          const OptionalTensor& bias, double eps) {
  const AddLayerNorm call("add_layer_norm", x, residual, weight, bias, eps);
  const auto& norm = call.args.norm;
  parallel_rows(FUSEWHEEL_SELECT(add_layer_norm_rows), call.args, norm.count, norm.size);
  return {call.norm.y, call.add.sum, call.norm.mean, call.norm.rstd};
}

std::tuple<Tensor, Tensor, Tensor> add_layer_norm_backward(
    const Tensor& grad, const Tensor& grad_sum, const Tensor& sum, const OptionalTensor& weight,
    const Tensor& mean, const Tensor& rstd, bool parameters) {
  const AddLayerNormBackward call("add_layer_norm_backward", grad, grad_sum, sum, weight, mean,
                                  rstd, parameters);
  const auto& norm = call.args.norm;
  parallel_chunks(FUSEWHEEL_SELECT(add_layer_norm_backward_chunks), call.args, norm.chunks,
                  norm.count * norm.size);
  if (parameters) {
    parallel_columns(FUSEWHEEL_SELECT(layer_norm_parameter_columns), norm, norm.size, norm.chunks);
  }
  return {call.norm.grad_x, call.norm.grad_weight, call.norm.grad_bias};
}

FUSEWHEEL_KERNELS(library) {
  kernel<add_layer_norm>(library, "add_layer_norm");
  kernel<add_layer_norm_backward>(library, "add_layer_norm_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
