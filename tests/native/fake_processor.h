// A processor of one's choice: FAKE_FEATURES are its features, FAKE_MAKER who made it, FAKE_LINES the
// lines in a set of its first-level cache. The feature "tiles-allowed" is Linux's permission to use the registers of AMX. Included before
// cpu_kernels/processor.cc, it answers that file's questions in place of the real processor.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include <unistd.h>

inline bool fake_has(const std::string& name) {
  const std::string all = std::string(",") + std::getenv("FAKE_FEATURES") + ",";
  return all.find("," + name + ",") != std::string::npos;
}

inline bool fake_is(const std::string& maker) { return maker == std::getenv("FAKE_MAKER"); }

inline long fake_syscall(long, long, long) { return fake_has("tiles-allowed") ? 0 : -1; }

inline long fake_sysconf(int) {
  const char* lines = std::getenv("FAKE_LINES");
  return lines == nullptr ? 0 : std::atol(lines);
}

#define sysconf fake_sysconf
#define __builtin_cpu_init()
#define __builtin_cpu_supports(name) fake_has(name)
#define __builtin_cpu_is(name) fake_is(name)
#define syscall fake_syscall

extern "C" const char* fusewheel_cpu_choices();

int main() { std::puts(fusewheel_cpu_choices()); }
