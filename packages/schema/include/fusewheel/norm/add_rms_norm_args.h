// What the kernels of add_rms_norm are given: plain data, no torch.
#pragma once

#include <fusewheel/norm/add_rows_args.h>
#include <fusewheel/norm/rms_norm_args.h>

namespace fusewheel {

struct AddRmsNormArgs {
  AddRowsArgs add;
  RmsNormArgs norm;  // of the sum
};

struct AddRmsNormBackwardArgs {
  AddRowsBackwardArgs add;
  RmsNormBackwardArgs norm;  // of the sum
};

// Each kernel library has its own.
void add_rms_norm_launch(const AddRmsNormArgs&, Stream);
void add_rms_norm_backward_launch(const AddRmsNormBackwardArgs&, Stream);

}  // namespace fusewheel
