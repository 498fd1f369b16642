// What both operators of the backward of attention need, and what its tasks share.
#pragma once

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "dtype.h"
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

inline int64_t accumulate_bytes(Dtype dtype) { return dtype == Dtype::kFloat64 ? 8 : 4; }

// Of so many queries of all heads, in case they see no key: then they are in no task.
inline void clear_results(const AttentionBackwardArgs& args, int64_t queries) {
  const auto& shape = args.forward.shape;
  const int64_t bytes = queries * shape.size * bytes_of(shape.dtype);
  if (bytes > 0) {  // else there may be no memory
    std::memset(args.grad_q.data, 0, static_cast<size_t>(bytes));
  }
  if (args.dots != nullptr) {
    std::memset(args.dots, 0, static_cast<size_t>(queries * accumulate_bytes(shape.dtype)));
  }
}

}  // namespace fusewheel
