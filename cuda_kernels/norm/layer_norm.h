// The norm of a sum, by the kernels of layer_norm.cu.
#pragma once

#include <fusewheel/norm/add_layer_norm_args.h>

namespace fusewheel {

void layer_norm_forward(const char* op, const AddLayerNormArgs&, Stream);
void layer_norm_backward(const char* op, const AddLayerNormBackwardArgs&, Stream);

}  // namespace fusewheel
