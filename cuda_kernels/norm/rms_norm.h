// The norm of a sum, by the kernels of rms_norm.cu.
#pragma once

#include <fusewheel/norm/add_rms_norm_args.h>

namespace fusewheel {

void rms_norm_forward(const char* op, const AddRmsNormArgs&, Stream);
void rms_norm_backward(const char* op, const AddRmsNormBackwardArgs&, Stream);

}  // namespace fusewheel
