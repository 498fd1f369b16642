// y = x * transposed weight + bias, w = code * scale + zero, 4-bit codes

#include "few_rows.h"
#include "tensor_rows.h"

namespace fusewheel {

void linear_int4_launch(const LinearArgs& args, Stream stream) {
  few_rows_launch<Int4>("linear_int4", args, stream);
}

bool linear_int4_tensor_launch(const LinearArgs& args, Stream stream) {
  return tensor_launch<Int4Tiles>("linear_int4", args, stream);
}

void linear_int4_dequantise_launch(const LinearWeight& weight, const Panel& panel, Stream stream) {
  dequantise_launch<Int4>("linear_int4", weight, panel, stream);
}

}  // namespace fusewheel
