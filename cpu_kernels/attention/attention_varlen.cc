// The operators of attention of packed sequences on the CPU: the tasks of attention, for each sequence.
//
// A task knows its own sequence alone. So a sequence has the same bits whatever else is packed.

#include <fusewheel/attention/attention_varlen.h>
#include <fusewheel/kernel.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "in_turn.h"
#include "tasks.h"

namespace fusewheel {

using FUSEWHEEL_ISA::parallel_for;

namespace {

// The tasks of all sequences, numbered one sequence after the other: the one with the most work has
// the first.
class PackedTasks {
 public:
  AttentionPlan plan{0, 0};

  PackedTasks(const AttentionShape& all, std::vector<Sequence> sequences,
              AttentionPlan (*plan_of)(const AttentionShape&))
      : sequences_(std::move(sequences)) {
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
      plan.tasks += part.tasks;
      plan.scratch_bytes = std::max(plan.scratch_bytes, part.scratch_bytes);
    }
  }

  // The sequence of a task, and the task's number there.
  std::pair<const Sequence&, int64_t> at(int64_t task) const {
    const auto next = std::upper_bound(firsts_.begin(), firsts_.end(), task);
    const auto index = next - firsts_.begin() - 1;
    return {sequences_[static_cast<size_t>(index)], task - *(next - 1)};
  }

 private:
  std::vector<Sequence> sequences_;
  std::vector<int64_t> firsts_;  // the number of each sequence's first task
};

AttentionBackwardTasks part_of(const AttentionBackwardTasks& all, const Sequence& own) {
  const auto& shape = all.forward.shape;
  const AttentionBackwardArgs& args = all;
  const int64_t moved = own.query * shape.size * accumulate_bytes(shape.dtype);
  return {fusewheel::part_of(args, own), advance(all.sums, moved),
          all.turns + own.query * shape.heads, all.yield};
}

std::tuple<Tensor, Tensor> attention_varlen(const Tensor& q, const Tensor& k, const Tensor& v,
                                            const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                                            const std::optional<Tensor>& sinks, int64_t left,
                                            int64_t right, double scale, double softcap) {
  AttentionVarlen call("attention_varlen", q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, left, right,
                       scale, softcap);
  call.allocate(q);
  const PackedTasks tasks(call.args.shape, call.sequences, FUSEWHEEL_SELECT(attention_plan));
  const auto task = FUSEWHEEL_SELECT(attention_task);
  in_turn(tasks.plan, [&](int64_t index, void* scratch) {
    const auto [sequence, own] = tasks.at(index);
    task(part_of(call.args, sequence), own, scratch);
  });
  return {call.out, call.logsumexp};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_varlen_backward(
    const Tensor& grad, const Tensor& grad_logsumexp, const Tensor& q, const Tensor& k,
    const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
    const std::optional<Tensor>& sinks, const Tensor& out, const Tensor& logsumexp, int64_t left,
    int64_t right, double scale, double softcap) {
  AttentionVarlenBackward call("attention_varlen_backward", grad, grad_logsumexp, q, k, v,
                               cu_seqlens_q, cu_seqlens_k, sinks, out, logsumexp, left, right,
                               scale, softcap);
  const auto& args = call.args;
  const auto& shape = args.forward.shape;
  // Of queries that see no key.
  std::memset(args.grad_q.data, 0, call.grad_q.numel() * call.grad_q.element_size());
  if (call.dots.has_value()) {
    std::memset(args.dots, 0, call.dots->numel() * call.dots->element_size());
  }
  const std::unique_ptr<char[]> sums(new char[static_cast<size_t>(
      shape.heads * shape.queries * shape.size * accumulate_bytes(shape.dtype))]);
  // More than there are blocks of queries.
  std::vector<int32_t> turns(static_cast<size_t>(shape.heads * shape.queries));
  const AttentionBackwardTasks shared{
      args, sums.get(), turns.data(), [] { std::this_thread::yield(); }};
  parallel_for(shape.heads, 1, [&](int64_t begin, int64_t end) {
    FUSEWHEEL_SELECT(attention_delta)(args, begin, end);
  });
  const PackedTasks tasks(shape, call.forward.sequences,
                          FUSEWHEEL_SELECT(attention_backward_plan));
  const auto task = FUSEWHEEL_SELECT(attention_backward_task);
  in_turn(tasks.plan, [&](int64_t index, void* scratch) {
    const auto [sequence, own] = tasks.at(index);
    task(part_of(shared, sequence), own, scratch);
  });
  if (args.grad_sinks != nullptr) {
    parallel_for(shape.heads, 1, [&](int64_t begin, int64_t end) {
      FUSEWHEEL_SELECT(attention_grad_sinks)(args, begin, end);
    });
  }
  return {call.grad_q, call.grad_k, call.grad_v, call.grad_sinks};
}

FUSEWHEEL_KERNELS(library) {
  kernel<attention_varlen>(library, "attention_varlen");
  kernel<attention_varlen_backward>(library, "attention_varlen_backward");
}

}  // namespace
}  // namespace fusewheel
