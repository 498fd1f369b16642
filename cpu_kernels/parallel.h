// Threads for the glue: PyTorch's own pool, so that torch.set_num_threads is obeyed.
#pragma once

#include <fusewheel/elementwise.h>
#include <fusewheel/kernel.h>
#include <torch/csrc/stable/ops.h>

#include "isa.h"

namespace fusewheel {

// Fewer elements than this are not worth waking a thread.
constexpr int64_t kGrain = 16384;

template <typename Function>
void parallel_for(int64_t count, int64_t grain, const Function& function) {
  if (count <= 0) {
    return;
  }
  if (count <= grain) {
    function(0, count);
  } else {
    torch::stable::parallel_for(0, count, grain, function);
  }
}

template <int outputs, int inputs>
void launch(void (*range)(const ElementwiseArgs<outputs + inputs>&, int64_t, int64_t),
            const Elementwise<outputs, inputs>& call) {
  parallel_for(call.args.geometry.numel, kGrain,
               [&](int64_t begin, int64_t end) { range(call.args, begin, end); });
}

}  // namespace fusewheel
