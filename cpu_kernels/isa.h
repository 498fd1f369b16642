// One kernel file serves every x86-64: CMake compiles each .cpp once per instruction-set level, the
// level is a namespace (FUSEWHEEL_ISA), and callers get the best one that this CPU has.
//
//     namespace fusewheel::FUSEWHEEL_ISA { void rms_norm_launch(const RmsNormArgs&) { ... } }
//     FUSEWHEEL_LAUNCHER(rms_norm_launch, RmsNormArgs);
//
// makes the function rms_norm_launch(const RmsNormArgs&, Stream), which the operator calls.
// Other functions have FUSEWHEEL_DECLARE(type function(...)) in a header and are called as
// FUSEWHEEL_SELECT(function)(...), in a .cc file, which is compiled once.
//
// A .cpp file may not include the standard library's or torch's C++ headers: an inline function of
// theirs, compiled for AVX-512, could be the copy the linker keeps.
#pragma once

#include <fusewheel/geometry.h>

#include "processor.h"

#define FUSEWHEEL_INLINE inline __attribute__((always_inline))
// The same of a lambda, behind its parameters: those that are used more than once are calls otherwise.
#define FUSEWHEEL_INLINED __attribute__((always_inline))

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

// FUSEWHEEL_BASELINE is defined at one level only, so that the function is made once.
#if FUSEWHEEL_BASELINE
#define FUSEWHEEL_LAUNCHER(function, Args)                                                   \
  FUSEWHEEL_DECLARE(void function(const Args&));                                             \
  namespace fusewheel {                                                                      \
  void function(const Args& args, Stream) { FUSEWHEEL_SELECT(function)(args); }              \
  }                                                                                          \
  static_assert(true, "")
#else
#define FUSEWHEEL_LAUNCHER(function, Args) static_assert(true, "")
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
