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

  // An asynchronous copy of the running thread has written its bytes of shared memory.
  void arrived(uintptr_t address, uint32_t size);

  // So many multiplications by the tensor cores.
  void multiplied(uint64_t count) { counter_.multiplied(count); }

  // All launches so far as JSON: counter.h says what of each.
  std::string report() const { return counter_.report(); }

 private:
  void look_for_race(const Access& access);

  Spaces spaces_;
  Counter counter_;
  Races races_;
  bool in_kernel_ = false;
};

// Null while nobody watches.
extern std::unique_ptr<Watch> watch;

}  // namespace fusewheel::emulation
