// sum = x + residual, y = layer_norm(sum), row by row

#include <fusewheel/norm/add_layer_norm_args.h>

#include "add_rows.h"
#include "layer_norm.h"
#include "parallel.h"

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

void add_layer_norm_launch(const AddLayerNormArgs& args) {
  parallel_rows(add_layer_norm_rows, args, args.norm.count, args.norm.size);
}

void add_layer_norm_backward_launch(const AddLayerNormBackwardArgs& args) {
  parallel_chunks(add_layer_norm_backward_chunks, args, args.norm.chunks,
                  args.norm.count * args.norm.size);
  if (args.norm.weight_partials != nullptr) {
    parallel_columns(layer_norm_parameter_columns, args.norm, args.norm.size, args.norm.chunks);
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(add_layer_norm_launch, AddLayerNormArgs);
FUSEWHEEL_LAUNCHER(add_layer_norm_backward_launch, AddLayerNormBackwardArgs);
