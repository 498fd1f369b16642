// The products of groups of rows, each with its own weight, on all threads.
#pragma once

#include <fusewheel/experts/groups.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <vector>

#include "dtype.h"
#include "in_turn.h"
#include "matmul/matmul.h"

namespace fusewheel {

inline const void* advance(const void* data, int64_t bytes) {
  return data == nullptr ? nullptr : static_cast<const char*>(data) + bytes;
}

inline LinearWeight weight_of(const GroupWeights& weights, int64_t group) {
  LinearWeight own = weights.first;
  own.data = advance(own.data, group * weights.step);
  return own;
}

inline int64_t bytes_of(const LinearWeight& weight) {
  const bool is_stored = weight.kind == WeightKind::kBlocks;
  return weight.rows * weight.stride * (is_stored ? 1 : bytes_of(weight.dtype)) + 1;
}

// Of a weight, that a thread reads on its own.
constexpr int64_t kMostStretchBytes = int64_t{1} << 20;
constexpr int64_t kFewestStretchBytes = int64_t{1} << 16;

// Products of different sizes, which share the threads: each is cut into parts of a few tasks.
class Products {
 public:
  MatmulPlan plan{0, 0};

  // `group` is a number of whoever adds it. Returns how many parts there are.
  int64_t add(const MatmulArgs& product, int64_t group = 0) {
    if (product.m == 0 || product.n == 0) {
      return 0;
    }
    const MatmulPlan own = FUSEWHEEL_SELECT(matmul_plan)(product);
    // Neighbouring tasks share what they pack. With one row they read one stretch of memory, which is
    // fast when it is long; stretches are alike, or a short rest would be one more beginning. Each
    // thread gets one, or a few experts would be read by as few threads.
    const auto divide_up = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit; };
    const int64_t bytes = bytes_of(product.weight);
    const int64_t stretches = std::max(divide_up(bytes, kMostStretchBytes),
                                       std::min(threads_, divide_up(bytes, kFewestStretchBytes)));
    const int64_t together = product.m > 1 ? 4 : divide_up(own.tasks, stretches);
    const int64_t parts = divide_up(own.tasks, together);
    products_.push_back({product, group, together, own.tasks});
    firsts_.push_back(plan.tasks);
    plan.tasks += parts;
    plan.scratch_bytes = std::max(plan.scratch_bytes, own.scratch_bytes);
    return parts;
  }

  void run() const {
    run([](int64_t) {}, [](int64_t) {});
  }

  // Calls before(group) and after(group) around each part; parts begin in the order of their products.
  template <typename Before, typename After>
  void run(const Before& before, const After& after) const {
    const auto tasks = FUSEWHEEL_SELECT(matmul_tasks);
    in_turn(plan, [&](int64_t part, void* scratch) {
      const auto next = std::upper_bound(firsts_.begin(), firsts_.end(), part);
      const auto index = static_cast<size_t>(next - firsts_.begin() - 1);
      const Product& own = products_[index];
      const int64_t begin = (part - firsts_[index]) * own.together;
      before(own.group);
      tasks(own.args, begin, std::min(begin + own.together, own.tasks), scratch);
      after(own.group);
    });
  }

 private:
  struct Product {
    MatmulArgs args;
    int64_t group;
    int64_t together;  // tasks of a part
    int64_t tasks;     // in all
  };
  int64_t threads_ = torch::stable::get_num_threads();
  std::vector<Product> products_;
  std::vector<int64_t> firsts_;  // the number of the first part of each
};

}  // namespace fusewheel
