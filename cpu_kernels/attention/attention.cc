// The operators of attention on the CPU. Elsewhere PyTorch's operators compute them, so they are not in
// packages/schema/operators/.

#include <fusewheel/attention/attention.h>
#include <fusewheel/kernel.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "parallel.h"
#include "tasks.h"

namespace fusewheel {

using FUSEWHEEL_ISA::parallel_for;

namespace {

// Calls task(index, scratch) for every task; they begin in the order of their numbers.
template <typename Task>
void in_turn(const AttentionPlan& plan, const Task& task) {
  std::atomic<int64_t> next{0};
  parallel_for(plan.tasks, 1, [&](int64_t, int64_t) {
    if (next.load() >= plan.tasks) {
      return;
    }
    // Before the first task is taken: a failure must not leave a task that others wait for.
    thread_local std::unique_ptr<char[]> memory;
    thread_local int64_t size = 0;
    constexpr int64_t kLine = 64;
    if (size < plan.scratch_bytes + kLine) {
      memory.reset();
      memory.reset(new char[static_cast<size_t>(plan.scratch_bytes + kLine)]);
      size = plan.scratch_bytes + kLine;
    }
    void* start = memory.get();
    size_t space = static_cast<size_t>(size);
    std::align(kLine, static_cast<size_t>(plan.scratch_bytes), start, space);
    for (int64_t index = next++; index < plan.tasks; index = next++) {
      task(index, start);
    }
  });
}

std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const std::optional<Tensor>& sinks,
                                     const std::optional<Tensor>& bias, int64_t left, int64_t right,
                                     double scale, double softcap) {
  Attention call("attention", q, k, v, sinks, bias, left, right, scale, softcap);
  call.allocate(q);
  const auto task = FUSEWHEEL_SELECT(attention_task);
  in_turn(FUSEWHEEL_SELECT(attention_plan)(call.args.shape),
          [&](int64_t index, void* scratch) { task(call.args, index, scratch); });
  return {call.out, call.logsumexp};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& grad_logsumexp, const Tensor& q, const Tensor& k,
    const Tensor& v, const std::optional<Tensor>& sinks, const std::optional<Tensor>& bias,
    const Tensor& out, const Tensor& logsumexp, int64_t left, int64_t right, double scale,
    double softcap) {
  AttentionBackward call("attention_backward", grad, grad_logsumexp, q, k, v, sinks, bias, out,
                         logsumexp, left, right, scale, softcap);
  auto& args = call.args;
  const auto& shape = args.forward.shape;
  // Of queries that see no key.
  std::memset(args.grad_q.data, 0, call.grad_q.numel() * call.grad_q.element_size());
  if (call.dots.has_value()) {
    std::memset(args.dots, 0, call.dots->numel() * call.dots->element_size());
  }
  // More than there are blocks of queries.
  std::vector<int32_t> turns(static_cast<size_t>(shape.batch * shape.heads * shape.queries));
  args.turns = turns.data();
  args.yield = [] { std::this_thread::yield(); };
  parallel_for(shape.batch * shape.heads, 1, [&](int64_t begin, int64_t end) {
    FUSEWHEEL_SELECT(attention_delta)(args, begin, end);
  });
  const auto task = FUSEWHEEL_SELECT(attention_backward_task);
  in_turn(FUSEWHEEL_SELECT(attention_backward_plan)(shape),
          [&](int64_t index, void* scratch) { task(args, index, scratch); });
  if (args.grad_sinks != nullptr) {
    parallel_for(shape.heads, 1, [&](int64_t begin, int64_t end) {
      FUSEWHEEL_SELECT(attention_grad_sinks)(args, begin, end);
    });
  }
  return {call.grad_q, call.grad_k, call.grad_v, call.grad_sinks};
}

FUSEWHEEL_KERNELS(library) {
  kernel<attention>(library, "attention");
  kernel<attention_backward>(library, "attention_backward");
}

}  // namespace
}  // namespace fusewheel
