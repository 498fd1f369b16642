// Divides the work of attention among the threads, and gives them the memory that they need.

#include "in_turn.h"
#include "shared.h"
#include "tasks.h"

namespace fusewheel {

using FUSEWHEEL_ISA::parallel_for;

int64_t attention_scratch_bytes(const AttentionShape&) { return 0; }

void attention_launch(const AttentionArgs& args, Stream) {
  const auto task = FUSEWHEEL_SELECT(attention_task);
  in_turn(FUSEWHEEL_SELECT(attention_plan)(args.shape),
          [&](int64_t index, void* scratch) { task(args, index, scratch); });
}

void attention_backward_launch(const AttentionBackwardArgs& args, Stream) {
  const auto& shape = args.forward.shape;
  clear_results(args, shape.batch * shape.heads * shape.queries);
  const AttentionPlan plan = FUSEWHEEL_SELECT(attention_backward_plan)(shape);
  Shared shared(plan);
  const AttentionBackwardTasks tasks = shared.tasks(args);
  parallel_for(shape.batch * shape.heads, 1, [&](int64_t begin, int64_t end) {
    FUSEWHEEL_SELECT(attention_delta)(args, begin, end);
  });
  const auto task = FUSEWHEEL_SELECT(attention_backward_task);
  in_turn(plan, [&](int64_t index, void* scratch) { task(tasks, index, scratch); });
  if (args.grad_sinks != nullptr) {
    parallel_for(shape.heads, 1, [&](int64_t begin, int64_t end) {
      FUSEWHEEL_SELECT(attention_grad_sinks)(args, begin, end);
    });
  }
}

}  // namespace fusewheel
