// Runs the tasks of a kernel on all threads.
#pragma once

#include <atomic>
#include <memory>

#include "parallel.h"

namespace fusewheel {

// How many tasks there are, and how much memory one needs meanwhile.
struct Tasks {
  int64_t tasks;
  int64_t scratch_bytes;
};

// Calls task(index, scratch) for every task; they begin in the order of their numbers. A plan has the
// members of Tasks.
template <typename Plan, typename Task>
void in_turn(const Plan& plan, const Task& task) {
  std::atomic<int64_t> next{0};
  FUSEWHEEL_ISA::parallel_for(plan.tasks, 1, [&](int64_t, int64_t) {
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

}  // namespace fusewheel
