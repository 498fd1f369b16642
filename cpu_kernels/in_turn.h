// Runs the tasks of a kernel on all threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

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
    // Before the first task is taken: a failure must not leave a task that others wait for.
    constexpr int64_t kLine = 64;
    thread_local std::vector<char> memory;
    memory.resize(std::max(memory.size(), static_cast<size_t>(plan.scratch_bytes + kLine)));
    void* start = memory.data();
    size_t space = memory.size();
    std::align(kLine, static_cast<size_t>(plan.scratch_bytes), start, space);
    for (int64_t index = next++; index < plan.tasks; index = next++) {
      task(index, start);
    }
  });
}

}  // namespace fusewheel
