// What the kernels of add_layer_norm are given: plain data, no torch.
#pragma once

#include <fusewheel/norm/add_rows_args.h>
#include <fusewheel/norm/layer_norm_args.h>

namespace fusewheel {

struct AddLayerNormArgs {
  AddRowsArgs add;
  LayerNormArgs norm;  // of the sum
};

struct AddLayerNormBackwardArgs {
  AddRowsBackwardArgs add;
  LayerNormBackwardArgs norm;  // of the sum
};

// Each kernel library has its own.
void add_layer_norm_launch(const AddLayerNormArgs&, Stream);
void add_layer_norm_backward_launch(const AddLayerNormBackwardArgs&, Stream);

}  // namespace fusewheel
