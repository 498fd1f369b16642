// sum = x + residual, y = rms_norm(sum), row by row

#include "rms_norm.h"

namespace fusewheel {

void add_rms_norm_launch(const AddRmsNormArgs& args, Stream stream) {
  rms_norm_forward("add_rms_norm", args, stream);
}

void add_rms_norm_backward_launch(const AddRmsNormBackwardArgs& args, Stream stream) {
  rms_norm_backward("add_rms_norm_backward", args, stream);
}

}  // namespace fusewheel
