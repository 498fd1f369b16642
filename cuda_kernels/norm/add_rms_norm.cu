// sum = x + residual, y = rms_norm(sum), row by row

#include <fusewheel/norm/add_rms_norm_args.h>

#include "add_rows.h"
#include "rms_norm.h"

namespace fusewheel {

void add_rms_norm_launch(const AddRmsNormArgs& args, Stream stream) {
  rms_norm_forward("add_rms_norm", OfSum<AddRmsNormArgs>{args}, stream);
}

void add_rms_norm_backward_launch(const AddRmsNormBackwardArgs& args, Stream stream) {
  rms_norm_backward("add_rms_norm_backward", OfSumBackward<AddRmsNormBackwardArgs>{args}, stream);
}

}  // namespace fusewheel
