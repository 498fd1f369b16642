#include "processor.h"

#include <fusewheel/export.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__linux__)
#include <unistd.h>
#if FUSEWHEEL_X86
#include <sys/syscall.h>
#endif
#endif

namespace fusewheel {
namespace {

constexpr const char* kLevels[] = {"baseline", "v3", "v4"};

// The environment variables.
constexpr const char* kIsa = "FUSEWHEEL_CPU_ISA";
constexpr const char* kVnni = "FUSEWHEEL_CPU_VNNI";
constexpr const char* kAmx = "FUSEWHEEL_CPU_AMX";
constexpr const char* kBf16 = "FUSEWHEEL_CPU_BF16";
constexpr const char* kRowsInTurn = "FUSEWHEEL_CPU_ROWS_IN_TURN";
constexpr const char* kFarRows = "FUSEWHEEL_CPU_FAR_ROWS";
constexpr const char* kFarHalves = "FUSEWHEEL_CPU_FAR_HALVES";
constexpr const char* kPrefetch = "FUSEWHEEL_CPU_PREFETCH";
constexpr const char* kSpreadRows = "FUSEWHEEL_CPU_SPREAD_ROWS";
constexpr const char* kOwnFloat32 = "FUSEWHEEL_CPU_OWN_FLOAT32";
constexpr const char* kOwnBFloat16 = "FUSEWHEEL_CPU_OWN_BFLOAT16";
constexpr const char* kOwnFloat16 = "FUSEWHEEL_CPU_OWN_FLOAT16";

#if FUSEWHEEL_X86
// A macro, because the compiler wants the name itself.
#define SUPPORTS(feature) (__builtin_cpu_supports(feature) != 0)

IsaLevel best_level() {
  __builtin_cpu_init();
  return SUPPORTS("x86-64-v4") ? IsaLevel::kV4
         : SUPPORTS("x86-64-v3") ? IsaLevel::kV3
                                 : IsaLevel::kBaseline;
}

bool is_amd() { return __builtin_cpu_is("amd") != 0; }
#else
#define SUPPORTS(feature) false

IsaLevel best_level() { return IsaLevel::kBaseline; }

bool is_amd() { return false; }
#endif

// Linux gives a process the registers of AMX when it asks for them.
bool may_use_tiles() {
#if FUSEWHEEL_X86 && defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// Lines in a set of the first-level cache; 0 or less where the system does not say.
long lines_in_set() {
#if defined(__linux__) && defined(_SC_LEVEL1_DCACHE_ASSOC)
  return sysconf(_SC_LEVEL1_DCACHE_ASSOC);
#else
  return 0;
#endif
}

// What an environment variable says; empty where it says nothing.
std::string wish(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

[[noreturn]] void refuse(const char* variable, const std::string& value, const char* expected) {
  throw std::runtime_error(std::string(variable) + " must be " + expected + ", got '" + value + "'");
}

IsaLevel level() {
  const IsaLevel best = best_level();
  const std::string value = wish(kIsa);
  if (value.empty()) {
    return best;
  }
  for (int i = 0; i < 3; ++i) {
    if (value == kLevels[i]) {
      return std::min(static_cast<IsaLevel>(i), best);
    }
  }
  refuse(kIsa, value, "baseline, v3 or v4");
}

bool flag(const char* variable, bool automatic) {
  const std::string value = wish(variable);
  if (value != "" && value != "0" && value != "1") {
    refuse(variable, value, "0 or 1");
  }
  return value.empty() ? automatic : value == "1";
}

Choices choose() {
  const IsaLevel isa = level();
  const bool v4 = isa == IsaLevel::kV4;
  const bool has_vnni =
      v4 ? SUPPORTS("avx512vnni") : isa == IsaLevel::kV3 && SUPPORTS("avxvnni");
  constexpr long kTileRows = 12;
  const bool rows_collide = v4 && lines_in_set() > 0 && lines_in_set() < kTileRows;
  const bool is_zen5 = SUPPORTS("avxvnni");  // of AMD's processors with AVX-512
  const bool has_bf16 = v4 && SUPPORTS("avx512bf16");
  const bool has_amx =
      has_bf16 && SUPPORTS("amx-tile") && SUPPORTS("amx-bf16") && SUPPORTS("amx-int8");
  return {isa,
          flag(kVnni, has_vnni) && has_vnni,
          flag(kAmx, has_amx) && has_amx && may_use_tiles(),
          flag(kBf16, is_amd()) && has_bf16,
          flag(kRowsInTurn, is_amd()),
          flag(kFarRows, is_amd() && isa != IsaLevel::kBaseline),
          flag(kFarHalves, v4 && is_amd() && !is_zen5),
          flag(kPrefetch, !is_amd()),
          flag(kSpreadRows, rows_collide),
          flag(kOwnFloat32, is_amd() && isa != IsaLevel::kBaseline),
          flag(kOwnBFloat16, !has_bf16),
          flag(kOwnFloat16, !(v4 && SUPPORTS("avx512fp16")))};
}

std::string describe(const Choices& made) {
  std::string text = std::string(kIsa) + "=" + kLevels[static_cast<int>(made.isa)];
  const auto add = [&](const char* variable, bool value) {
    text += std::string("\n") + variable + (value ? "=1" : "=0");
  };
  add(kVnni, made.vnni);
  add(kAmx, made.amx);
  add(kBf16, made.bf16);
  add(kRowsInTurn, made.rows_in_turn);
  add(kFarRows, made.far_rows);
  add(kFarHalves, made.far_halves);
  add(kPrefetch, made.prefetch);
  add(kSpreadRows, made.spread_rows);
  add(kOwnFloat32, made.own_float32);
  add(kOwnBFloat16, made.own_bfloat16);
  add(kOwnFloat16, made.own_float16);
  return text;
}

}  // namespace

const Choices& choices() {
  static const Choices made = choose();
  return made;
}

}  // namespace fusewheel

// The choices in force, as the environment variables that would make them, a line each. Where a
// variable has a value that it cannot have, what is wrong with it.
FUSEWHEEL_EXPORT const char* fusewheel_cpu_choices() {
  static const std::string text = [] {
    try {
      return fusewheel::describe(fusewheel::choices());
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
  }();
  return text.c_str();
}
