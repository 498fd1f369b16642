// One piece of memory for the values that only steps with pointers see. Values that are not needed at
// the same time share places in it.
//
// Which values these are is known when a program is read. Where they lie depends on their sizes: a
// plan is made for the sizes that came, and kept for the next call with the same ones.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

namespace fusewheel::engine {

struct Program;

constexpr int64_t kNowhere = std::numeric_limits<int64_t>::min();

// A value in the arena, and the first and the last step that need it.
struct Tenant {
  uint32_t value;
  uint32_t first;
  uint32_t last;
  bool only_one_row;  // the result of a linear layer: of more rows, its operator makes a tensor
};

struct ArenaPlan {
  std::vector<int64_t> sizes;    // for which it was made
  std::vector<int64_t> offsets;  // of each value, in bytes; kNowhere outside of the arena
  int64_t bytes;
};

// The plans of a program for several sizes. Threads may share it.
class ArenaPlans {
 public:
  // Sizes of `program` that its tenants have are compared; all of its numbers are given.
  std::shared_ptr<const ArenaPlan> find(const Program& program,
                                        const std::vector<int64_t>& numbers);

 private:
  std::mutex lock_;
  std::vector<std::shared_ptr<const ArenaPlan>> plans_;  // the newest one last
};

// Sets which values live in the arena, and when.
void mark_tenants(Program& program);

}  // namespace fusewheel::engine
