// Which memory of a GPU an address of the emulation stands for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "access.h"

namespace fusewheel::emulation {

struct Range {
  uintptr_t from = 0;
  uintptr_t size = 0;
  bool has(uintptr_t address) const { return address - from < size; }
};

// A kernel's variables lie on the stack of its fiber and its parameters on the launching thread's:
// registers and constants of a GPU. What a file of kernels declares `static` is its shared memory.
// All else is global memory.
class Spaces {
 public:
  Spaces();

  void begin_launch(size_t dynamic_shared);
  Space of(uintptr_t address) const;

  // Where an address of shared memory stands, counted through its static and then its dynamic part.
  size_t offset_in_shared(uintptr_t address) const {
    return dynamic_.has(address) ? writable_.size + (address - dynamic_.from)
                                 : address - writable_.from;
  }
  size_t shared_size() const { return writable_.size + dynamic_.size; }

  // An address of code as it stands in the library's file.
  uintptr_t in_file(uintptr_t code) const { return code - base_; }

 private:
  uintptr_t base_ = 0;
  Range writable_;              // of the library that holds the kernels
  std::vector<Range> constants_;  // its other segments
  Range dynamic_;
  Range stack_;  // of the thread that launches
};

}  // namespace fusewheel::emulation
