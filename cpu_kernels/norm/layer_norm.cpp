// y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var(x) + eps), row by row

#include "layer_norm.h"

FUSEWHEEL_DECLARE(void layer_norm_rows(const LayerNormArgs&, int64_t, int64_t));
FUSEWHEEL_DECLARE(void layer_norm_backward_chunks(const LayerNormBackwardArgs&, int64_t, int64_t));

namespace fusewheel::FUSEWHEEL_ISA {

void layer_norm_rows(const LayerNormArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* x = static_cast<const T*>(args.x);
    layer_norm_forward<T>(args, begin, end, [&](int64_t row, int64_t i, int64_t live) {
      return load(x + row * args.x_stride + i, live);
    });
  });
}

void layer_norm_backward_chunks(const LayerNormBackwardArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    layer_norm_backward<decltype(zero)>(
        args, begin, end, [](int64_t, int64_t, int64_t, auto grad_x) { return grad_x; });
  });
}

void layer_norm_parameter_columns(const LayerNormBackwardArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    sum_chunks<T>(args.weight_partials, args.grad_weight, args.chunks, args.size, begin, end);
    sum_chunks<T>(args.bias_partials, args.grad_bias, args.chunks, args.size, begin, end);
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include "parallel.h"

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& x, const OptionalTensor& weight,
                                              const OptionalTensor& bias, double eps) {
  const LayerNorm call("layer_norm", {"x", x}, weight, bias, eps);
  const auto& args = call.args;
  parallel_rows(FUSEWHEEL_SELECT(layer_norm_rows), args, args.count, args.size);
  return {call.y, call.mean, call.rstd};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad, const Tensor& x,
                                                       const OptionalTensor& weight,
                                                       const Tensor& mean, const Tensor& rstd,
                                                       bool parameters) {
  const LayerNormBackward call("layer_norm_backward", grad, {"x", x}, weight, mean, rstd,
                               parameters);
  const auto& args = call.args;
  parallel_chunks(FUSEWHEEL_SELECT(layer_norm_backward_chunks), args, args.chunks,
                  args.count * args.size);
  if (parameters) {
    parallel_columns(FUSEWHEEL_SELECT(layer_norm_parameter_columns), args, args.size, args.chunks);
  }
  return {call.grad_x, call.grad_weight, call.grad_bias};
}

FUSEWHEEL_KERNELS(library) {
  kernel<layer_norm>(library, "layer_norm");
  kernel<layer_norm_backward>(library, "layer_norm_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
