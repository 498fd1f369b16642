#include "isa.h"

#include <fusewheel/export.h>

#include <cstdlib>
#include <cstring>

namespace fusewheel {
namespace {

IsaLevel supported() {
#if FUSEWHEEL_X86
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? IsaLevel::kV4 : v3 ? IsaLevel::kV3 : IsaLevel::kBaseline;
#else
  return IsaLevel::kBaseline;
#endif
}

bool is_amd() {
#if FUSEWHEEL_X86
  static const bool amd = __builtin_cpu_is("amd");
  return amd;
#else
  return false;
#endif
}

IsaLevel choose() {
  const IsaLevel best = supported();
  const char* wish = std::getenv("FUSEWHEEL_CPU_ISA");
  if (wish != nullptr && std::strcmp(wish, "baseline") == 0) {
    return IsaLevel::kBaseline;
  }
  if (wish != nullptr && std::strcmp(wish, "v3") == 0 && best == IsaLevel::kV4) {
    return IsaLevel::kV3;
  }
  return best;
}

}  // namespace

IsaLevel isa_level() {
  static const IsaLevel level = choose();
  return level;
}

bool has_vnni() {
#if FUSEWHEEL_X86
  static const bool vnni = __builtin_cpu_supports("avx512vnni");
  return vnni;
#else
  return false;
#endif
}

bool reads_rows_in_turn() { return is_amd(); }

bool outruns_mkl() { return is_amd() && isa_level() != IsaLevel::kBaseline; }

}  // namespace fusewheel

FUSEWHEEL_EXPORT const char* fusewheel_cpu_isa() {
  switch (fusewheel::isa_level()) {
    case fusewheel::IsaLevel::kV4: return "v4";
    case fusewheel::IsaLevel::kV3: return "v3";
    default: return "baseline";
  }
}
