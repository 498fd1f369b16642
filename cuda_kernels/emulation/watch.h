// Counts the accesses of kernels to memory, and looks for races among them.
//
// The kernels are compiled with -fsanitize=thread, and not linked with its library: watch.cc has the
// functions that g++ then calls at each access. Nothing is watched until somebody asks for it.
#pragma once

#include <memory>
#include <string>

#include "counter.h"
#include "races.h"
#include "spaces.h"

namespace fusewheel::emulation {

class Watch {
 public:
  void begin_launch(const char* name, const void* kernel, dim3 grid, dim3 size, size_t shared);
  void begin_block(uint64_t number);
  void warp_met(unsigned warp, bool orders);
  void block_met();
  void end_block();

  // One access of the running thread; a race ends the launch.
  void access(uintptr_t address, uintptr_t code, uint32_t size, bool writes);

  // All launches so far as JSON: counter.h says what of each.
  std::string report() const { return counter_.report(); }

 private:
  Spaces spaces_;
  Counter counter_;
  Races races_;
  bool in_kernel_ = false;
};

// Null while nobody watches.
extern std::unique_ptr<Watch> watch;

}  // namespace fusewheel::emulation
