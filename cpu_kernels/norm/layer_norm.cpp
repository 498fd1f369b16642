// y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var(x) + eps), row by row

#include "layer_norm.h"
#include "parallel.h"

namespace fusewheel::FUSEWHEEL_ISA {

void layer_norm_rows(const LayerNormArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    layer_norm_forward<T>(args, begin, end, own_rows<T>(args));
  });
}

void layer_norm_backward_chunks(const LayerNormBackwardArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    layer_norm_backward<decltype(zero)>(args, begin, end, as_it_is);
  });
}

void layer_norm_parameter_columns(const LayerNormBackwardArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    sum_chunks<T>(args.weight_partials, args.grad_weight, args.chunks, args.size, begin, end);
    sum_chunks<T>(args.bias_partials, args.grad_bias, args.chunks, args.size, begin, end);
  });
}

void layer_norm_launch(const LayerNormArgs& args) {
  parallel_rows(layer_norm_rows, args, args.count, args.size);
}

void layer_norm_backward_launch(const LayerNormBackwardArgs& args) {
  parallel_chunks(layer_norm_backward_chunks, args, args.chunks, args.count * args.size);
  if (args.weight_partials != nullptr) {
    parallel_columns(layer_norm_parameter_columns, args, args.size, args.chunks);
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(layer_norm_launch, LayerNormArgs);
FUSEWHEEL_LAUNCHER(layer_norm_backward_launch, LayerNormBackwardArgs);
