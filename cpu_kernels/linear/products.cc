// Every linear layer's products are those of matmul/.

#include <fusewheel/aten.h>
#include <fusewheel/linear/products.h>

#include "matmul/products.h"

namespace fusewheel {

void multiply(const char*, Linear& call, int64_t rounded_by) {
  matmul(call.x, call.weight.weight, call.bias, call.y, rounded_by);
}

void multiply(const char*, LinearBackward& call) {
  matmul_transposed(call.grad, call.weight.weight, call.grad_x);
}

// Sums of float64 are in float64, be the weight narrower or not.
void multiply(const char*, LinearBackwardWeight& call) {
  const ScalarType dtype = call.grad_weight.scalar_type();
  Tensor sums = call.grad_weight;
  if (call.x.tensor.scalar_type() == ScalarType::Double) {
    sums = empty_contiguous(sums.sizes(), ScalarType::Double, sums);
  }
  matmul_gradient(call.grad, call.x, sums);
  call.grad_weight = as_type(sums, dtype);
}

}  // namespace fusewheel
