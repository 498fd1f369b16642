// Asynchronous copies into shared memory that have begun, by thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_set>
#include <vector>

namespace fusewheel::emulation {

class Copies {
 public:
  static constexpr uintptr_t kBytes = 16;

  void begin_block(size_t threads);
  void begin(unsigned thread, void* to, const void* bytes);
  void end_group(unsigned thread);

  // Completes all groups of the thread but the last `left`.
  void wait(unsigned thread, size_t left);

  // Whether an access would meet a copy that nobody has waited for.
  bool is_on_its_way(uintptr_t address, uint32_t size) const;

 private:
  struct Copy {
    void* to;
    std::array<unsigned char, kBytes> bytes;
  };
  struct Thread {
    std::vector<Copy> begun;  // since the last group has ended
    std::deque<std::vector<Copy>> groups;
  };

  std::vector<Thread> threads_;
  std::unordered_set<uintptr_t> on_their_way_;  // addresses divided by kBytes
};

}  // namespace fusewheel::emulation
