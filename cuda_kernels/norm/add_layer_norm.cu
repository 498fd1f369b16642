// sum = x + residual, y = layer_norm(sum), row by row

#include "layer_norm.h"

namespace fusewheel {

void add_layer_norm_launch(const AddLayerNormArgs& args, Stream stream) {
  layer_norm_forward("add_layer_norm", args, stream);
}

void add_layer_norm_backward_launch(const AddLayerNormBackwardArgs& args, Stream stream) {
  layer_norm_backward("add_layer_norm_backward", args, stream);
}

}  // namespace fusewheel
