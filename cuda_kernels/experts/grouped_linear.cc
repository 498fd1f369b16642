// Launches grouped products.

#include <fusewheel/aten.h>
#include <fusewheel/experts/grouped_linear.h>

#include "grouped_linear.h"

namespace fusewheel {

void multiply(const char* op, GroupedLinear& call) {
  if (call.y.numel() == 0) {
    return;
  }
  if (call.args.weights.first.kind == WeightKind::kFloating) {
    return run(op, grouped_linear_launch, call.args, call.y);
  }
  call.x = rows_of(as_type(call.x.tensor, accumulate_type(call.y)));
  call.args.x = call.x.tensor.const_data_ptr();
  call.args.x_stride = call.x.stride;
  run(op, grouped_linear_blocks_launch, call.args, call.y);
}

void multiply(const char* op, GroupedLinearBackwardWeight& call) {
  if (call.grad_weight.numel() > 0) {
    run(op, grouped_linear_backward_weight_launch, call.args, call.grad_weight);
  }
}

}  // namespace fusewheel
