// Launches grouped products.

#include <fusewheel/experts/grouped_linear.h>

#include "grouped_linear.h"

namespace fusewheel {

void multiply(const char* op, GroupedLinear& call) {
  if (call.y.numel() > 0) {
    run(op, grouped_linear_launch, call.args, call.y);
  }
}

void multiply(const char* op, GroupedLinearBackwardWeight& call) {
  if (call.grad_weight.numel() > 0) {
    run(op, grouped_linear_backward_weight_launch, call.args, call.grad_weight);
  }
}

}  // namespace fusewheel
