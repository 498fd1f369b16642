// y = x * transposed weight + bias, in floating numbers

#include "few_rows.h"
#include "tensor_floats.h"

namespace fusewheel {

// float32 activations and a weight of half the width.
void linear_launch(const LinearArgs& args, Stream stream) {
  if (args.weight.dtype == Dtype::kBFloat16) {
    few_rows_launch<float, Floats<__nv_bfloat16>>("linear", args, stream);
  } else {
    few_rows_launch<float, Floats<__half>>("linear", args, stream);
  }
}

bool linear_tensor_launch(const LinearArgs& args, Stream stream) {
  return args.weight.dtype == Dtype::kBFloat16
             ? parts_launch<__nv_bfloat16>("linear", args, stream)
             : parts_launch<__half>("linear", args, stream);
}

}  // namespace fusewheel
