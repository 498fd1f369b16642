// What the tasks of the backward of attention share.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "tasks.h"

namespace fusewheel {

class Shared {
 public:
  explicit Shared(const AttentionPlan& plan)
      : turns_(static_cast<size_t>(plan.turns)),
        rests_(new uint16_t[static_cast<size_t>(plan.rests)]) {}

  AttentionBackwardTasks tasks(const AttentionBackwardArgs& args) {
    return {args, turns_.data(), rests_.get(), [] { std::this_thread::yield(); }};
  }

 private:
  std::vector<int32_t> turns_;
  std::unique_ptr<uint16_t[]> rests_;
};

}  // namespace fusewheel
