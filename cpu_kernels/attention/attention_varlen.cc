// Attention of packed sequences: the tasks of attention, for each sequence.
//
// A task knows its own sequence alone. So a sequence has the same bits whatever else is packed.

#include <fusewheel/attention/attention_varlen_args.h>

#include <algorithm>
#include <vector>

#include "dtype.h"
#include "in_turn.h"
#include "shared.h"

namespace fusewheel {

using FUSEWHEEL_ISA::parallel_for;

namespace {

void* advance(void* data, int64_t bytes) {
  return data == nullptr ? nullptr : static_cast<char*>(data) + bytes;
}

// The same tensor from one of its rows on.
View from_row(View view, int64_t row, int64_t bytes) {
  view.data = advance(view.data, row * view.strides[2] * bytes);
  return view;
}

// The arguments for one sequence alone, from those of all.
AttentionArgs part_of(const AttentionArgs& all, const Sequence& own) {
  AttentionArgs args = all;
  const int64_t bytes = bytes_of(args.shape.dtype);
  args.shape.queries = own.queries;
  args.shape.keys = own.keys;
  args.q = from_row(args.q, own.query, bytes);
  args.k = from_row(args.k, own.key, bytes);
  args.v = from_row(args.v, own.key, bytes);
  args.out = from_row(args.out, own.query, bytes);
  args.logsumexp = advance(args.logsumexp, own.query * accumulate_bytes(args.shape.dtype));
  return args;
}

AttentionBackwardArgs part_of(const AttentionBackwardArgs& all, const Sequence& own) {
  AttentionBackwardArgs args = all;
  args.forward = part_of(all.forward, own);
  const int64_t bytes = bytes_of(args.forward.shape.dtype);
  const int64_t wide = accumulate_bytes(args.forward.shape.dtype);
  args.grad = from_row(args.grad, own.query, bytes);
  args.grad_logsumexp = from_row(args.grad_logsumexp, own.query, wide);
  args.grad_q = from_row(args.grad_q, own.query, bytes);
  args.grad_k = from_row(args.grad_k, own.key, bytes);
  args.grad_v = from_row(args.grad_v, own.key, bytes);
  args.delta = advance(args.delta, own.query * wide);
  args.dots = advance(args.dots, own.query * wide);
  return args;
}

// The tasks of all sequences, numbered one sequence after the other: the one with the most work has
// the first.
class PackedTasks {
 public:
  AttentionPlan plan{0, 0};

  PackedTasks(const AttentionShape& all, const Packing& packing,
              AttentionPlan (*plan_of)(const AttentionShape&))
      : sequences_(packing.sequences, packing.sequences + packing.count) {
    const auto work = [](const Sequence& own) {
      return static_cast<double>(own.queries) * static_cast<double>(own.keys);
    };
    std::stable_sort(sequences_.begin(), sequences_.end(),
                     [&](const Sequence& a, const Sequence& b) { return work(a) > work(b); });
    for (const Sequence& own : sequences_) {
      AttentionShape shape = all;
      shape.queries = own.queries;
      shape.keys = own.keys;
      const AttentionPlan part = plan_of(shape);
      firsts_.push_back(plan.tasks);
      turns_.push_back(plan.turns);
      rests_.push_back(plan.rests);
      plan.tasks += part.tasks;
      plan.turns += part.turns;
      plan.rests += part.rests;
      plan.scratch_bytes = std::max(plan.scratch_bytes, part.scratch_bytes);
    }
  }

  // The sequence of a task; the task's number there; what all tasks share before what its tasks do.
  struct Place {
    const Sequence& sequence;
    int64_t task;
    int64_t turns;
    int64_t rests;
  };

  Place at(int64_t task) const {
    const auto next = std::upper_bound(firsts_.begin(), firsts_.end(), task);
    const auto index = static_cast<size_t>(next - firsts_.begin() - 1);
    return {sequences_[index], task - firsts_[index], turns_[index], rests_[index]};
  }

 private:
  std::vector<Sequence> sequences_;
  // Of each sequence: what all sequences before it have.
  std::vector<int64_t> firsts_;
  std::vector<int64_t> turns_;
  std::vector<int64_t> rests_;
};

}  // namespace

int64_t packing_scratch_bytes(int64_t) { return 0; }

void attention_varlen_launch(const AttentionVarlenArgs& args, Stream) {
  const PackedTasks tasks(args.all.shape, args.packing, FUSEWHEEL_SELECT(attention_plan));
  const auto task = FUSEWHEEL_SELECT(attention_task);
  in_turn(tasks.plan, [&](int64_t index, void* scratch) {
    const auto place = tasks.at(index);
    task(part_of(args.all, place.sequence), place.task, scratch);
  });
}

void attention_varlen_backward_launch(const AttentionVarlenBackwardArgs& call, Stream) {
  const auto& args = call.all;
  const auto& shape = args.forward.shape;
  clear_results(args, shape.heads * shape.queries);
  parallel_for(shape.heads, 1, [&](int64_t begin, int64_t end) {
    FUSEWHEEL_SELECT(attention_delta)(args, begin, end);
  });
  const PackedTasks tasks(shape, call.packing, FUSEWHEEL_SELECT(attention_backward_plan));
  Shared all(tasks.plan);
  const auto task = FUSEWHEEL_SELECT(attention_backward_task);
  in_turn(tasks.plan, [&](int64_t index, void* scratch) {
    const auto place = tasks.at(index);
    AttentionBackwardTasks own = all.tasks(part_of(args, place.sequence));
    own.turns += place.turns;
    own.rests += place.rests;
    task(own, place.task, scratch);
  });
  if (args.grad_sinks != nullptr) {
    parallel_for(shape.heads, 1, [&](int64_t begin, int64_t end) {
      FUSEWHEEL_SELECT(attention_grad_sinks)(args, begin, end);
    });
  }
}

}  // namespace fusewheel
