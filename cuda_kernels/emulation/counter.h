// What each instruction of a kernel moves: the accesses that the lanes of a warp make together.
//
// Two lanes' accesses belong together if they come from the same place in the code, between the same
// two meetings of the warp (shuffles and barriers), and each is its lane's n-th from there.
#pragma once

#include <array>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "access.h"
#include "fibers.h"

namespace fusewheel::emulation {

constexpr uintptr_t kSector = 32;  // bytes that a GPU fetches at least

// What the caches of a large GPU hold for each of the blocks that it runs at a time, in sectors. What
// a warp has touched has left them when the warp has fetched its part of that. What another warp has
// touched since is taken to be there: on a GPU they run side by side.
// FUSEWHEEL_EMULATION_CACHE is that in bytes, for a kernel of which fewer blocks run.
inline uint64_t sectors_kept() {
  const char* bytes = std::getenv("FUSEWHEEL_EMULATION_CACHE");
  return (bytes == nullptr ? 64 * 1024 : std::strtoull(bytes, nullptr, 10)) / kSector;
}

// All executions of one instruction by all warps of a launch.
struct Instruction {
  uint64_t executions = 0;
  uint64_t lanes = 0;
  uint64_t bytes = 0;    // different ones in each execution
  uint64_t sectors = 0;  // of global memory that the executions touch
  uint64_t needed = 0;   // that would hold as many bytes
  uint64_t passes = 0;   // through shared memory; a bank serves one word in each
  uint64_t least_passes = 0;
};

class Counter {
 public:
  void begin_launch(const char* name, uintptr_t kernel, dim3 grid, dim3 size, size_t shared);
  void begin_block(uint64_t number);
  void add(unsigned thread, const Access& access);
  void multiplied(uint64_t count) { launches_.back().products += count; }

  // The warp has met: what its lanes do next is another instruction.
  void finish(unsigned warp);
  void finish_all();

  std::string report() const;

 private:
  // Place, space, bytes of a lane's access, writes.
  using Key = std::tuple<uintptr_t, Space, uint32_t, bool>;

  // Who touched a sector of global memory last, and how many sectors that warp had fetched by then.
  struct Sector {
    uint64_t block = 0;  // one more than its number; 0 if nobody has touched it
    unsigned warp = 0;
    uint64_t fetched = 0;
    bool written = false;
  };

  struct Launch {
    std::string name;
    uintptr_t kernel;  // where it begins, in the library's file
    dim3 grid;
    dim3 size;
    size_t shared;
    uint64_t read = 0;  // sectors that no cache held
    uint64_t written = 0;
    uint64_t products = 0;  // multiplications by tensor cores
    std::map<Key, Instruction> instructions;
  };

  // The accesses of lanes that belong together.
  struct Group {
    Key key;
    unsigned turn;
    std::vector<std::pair<uintptr_t, uint32_t>> accesses;  // addresses and sizes
  };

  void gather(const std::vector<Access>& lane);
  void count(const Group& group);
  void note_sector(uintptr_t sector, bool writes);

  std::vector<Launch> launches_;
  uint64_t kept_ = 0;  // sectors
  std::unordered_map<uintptr_t, Sector> sectors_;
  uint64_t block_ = 0;
  unsigned warp_ = 0;
  std::vector<uint64_t> fetched_;  // sectors, by each warp of the block
  std::vector<std::array<std::vector<Access>, kWarpSize>> warps_;
  std::vector<Group> groups_;
};

}  // namespace fusewheel::emulation
