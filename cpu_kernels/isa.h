// One kernel file serves every x86-64: CMake compiles it once per instruction-set level, the level
// is a namespace (FUSEWHEEL_ISA), and the glue, compiled once, calls the best one this CPU has.
//
//     FUSEWHEEL_DECLARE(void rows(const Args&, int64_t begin, int64_t end));  // all levels
//     namespace fusewheel::FUSEWHEEL_ISA { void rows(...) { ... } }           // this level
//     #if FUSEWHEEL_GLUE
//     FUSEWHEEL_SELECT(rows)(args, 0, n);                                     // the best level
//     #endif
//
// The part outside FUSEWHEEL_GLUE may not include the standard library's or torch's C++ headers:
// an inline function of theirs, compiled for AVX-512, could be the copy the linker keeps.
#pragma once

#include <cstdint>

#include "processor.h"

#define FUSEWHEEL_INLINE inline __attribute__((always_inline))

#if FUSEWHEEL_X86

#define FUSEWHEEL_DECLARE(...)             \
  namespace fusewheel::baseline { __VA_ARGS__; }   \
  namespace fusewheel::x86_64_v3 { __VA_ARGS__; }  \
  namespace fusewheel::x86_64_v4 { __VA_ARGS__; }  \
  static_assert(true, "")

#define FUSEWHEEL_SELECT(function)                                                         \
  ::fusewheel::select(&::fusewheel::baseline::function, &::fusewheel::x86_64_v3::function, \
                      &::fusewheel::x86_64_v4::function)

#else

#define FUSEWHEEL_DECLARE(...)           \
  namespace fusewheel::baseline { __VA_ARGS__; } \
  static_assert(true, "")

#define FUSEWHEEL_SELECT(function) (&::fusewheel::baseline::function)

#endif

namespace fusewheel {

template <typename Function>
Function select(Function baseline, Function v3, Function v4) {
  switch (choices().isa) {
    case IsaLevel::kV4: return v4;
    case IsaLevel::kV3: return v3;
    default: return baseline;
  }
}

}  // namespace fusewheel
