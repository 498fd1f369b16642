// y = x * transposed weight + bias, w = code * scale, 8-bit codes

#include "few_rows.h"
#include "tensor_rows.h"

namespace fusewheel {

void linear_int8_launch(const LinearArgs& args, Stream stream) {
  few_rows_launch<Int8>("linear_int8", args, stream);
}

bool linear_int8_tensor_launch(const LinearArgs& args, Stream stream) {
  return tensor_launch<Int8Tiles>("linear_int8", args, stream);
}

void linear_int8_dequantise_launch(const LinearWeight& weight, const Panel& panel, Stream stream) {
  dequantise_launch<Int8>("linear_int8", weight, panel, stream);
}

}  // namespace fusewheel
