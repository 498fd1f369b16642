// Races: two accesses to one byte, at least one a write, by threads between which nothing decides who
// comes first. Within a block that is decided by __syncthreads(), and within a warp by __syncwarp()
// too; a shuffle does not. Between blocks of a launch nothing decides. Also reads of shared memory
// that nobody of the block has written.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "access.h"
#include "fibers.h"

namespace fusewheel::emulation {

class Races {
 public:
  void begin_launch(size_t shared, dim3 size);
  void begin_block(uint64_t number);
  void warp_met(unsigned warp) { ++synced_[warp]; }
  void block_met() { ++barrier_; }

  // What is wrong with the access, or nothing.
  std::string add(unsigned thread, const Access& access, size_t offset_in_shared);

 private:
  // When and by whom; nobody yet if `barrier` is 0.
  struct Moment {
    uint32_t barrier = 0;  // how many barriers were passed, through all blocks
    uint32_t synced = 0;   // how many the warp has passed of its own
    uint16_t warp = 0;
    uint16_t lane = 0;
  };

  // What is known of one byte: who wrote last, and the last readers of two warps.
  struct Byte {
    Moment write;
    Moment read;
    Moment other_read;
    uint64_t writing_block = 0;  // one more than its number
    uint64_t reading_block = 0;
  };

  static constexpr uintptr_t kPageBytes = 1024;
  struct Page {
    Byte bytes[kPageBytes];
  };

  static bool is_before(const Moment& earlier, const Moment& now);
  static void note_read(Byte& byte, const Moment& now);
  const char* check(const Byte& byte, const Moment& now, const Access& access) const;
  const char* check_blocks(Byte& byte, const Access& access) const;
  Byte& global_byte(uintptr_t address);

  uint32_t barrier_ = 0;
  uint32_t first_barrier_ = 0;  // of the block
  uint64_t block_ = 0;
  std::vector<uint32_t> synced_;
  std::vector<Byte> shared_;
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> global_;
  Page* page_ = nullptr;  // the one that was used last
  uintptr_t page_number_ = 0;
};

}  // namespace fusewheel::emulation
