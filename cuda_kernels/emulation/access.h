// One access of one thread of a kernel to memory.
#pragma once

#include <cstdint>

namespace fusewheel::emulation {

enum class Space { kNone, kShared, kGlobal };

struct Access {
  uintptr_t address;
  uintptr_t place;  // of the instruction, in the library's file
  uint32_t size;
  Space space;
  bool writes;
};

}  // namespace fusewheel::emulation
