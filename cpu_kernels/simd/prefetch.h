// Asking memory for what is read later.
#pragma once

#include "vec.h"

namespace fusewheel::FUSEWHEEL_ISA {

constexpr int64_t kLineBytes = 64;
// What __builtin_prefetch calls the caches.
constexpr int kFirstLevel = 3;
constexpr int kSecondLevel = 2;

// Asks for the cache lines of bytes [begin, begin + count).
FUSEWHEEL_INLINE void prefetch(const void* from, int64_t begin, int64_t count) {
  for (int64_t i = 0; i < count; i += kLineBytes) {
    __builtin_prefetch(static_cast<const char*>(from) + begin + i);
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
