#include "watch.h"

#include <fusewheel/export.h>

namespace fusewheel::emulation {

std::unique_ptr<Watch> watch;

void Watch::begin_launch(const char* name, const void* kernel, dim3 grid, dim3 size,
                         size_t shared) {
  spaces_.begin_launch(shared);
  counter_.begin_launch(name, spaces_.in_file(reinterpret_cast<uintptr_t>(kernel)), grid, size,
                        shared);
  races_.begin_launch(spaces_.shared_size(), size);
}

void Watch::begin_block(uint64_t number) {
  counter_.begin_block(number);
  races_.begin_block(number);
  in_kernel_ = true;
}

void Watch::warp_met(unsigned warp, bool orders) {
  counter_.finish(warp);
  if (orders) {
    races_.warp_met(warp);
  }
}

void Watch::block_met() {
  counter_.finish_all();
  races_.block_met();
}

void Watch::end_block() {
  in_kernel_ = false;
  counter_.finish_all();
}

void Watch::access(uintptr_t address, uintptr_t code, uint32_t size, bool writes) {
  if (!in_kernel_) {
    return;
  }
  const Space space = spaces_.of(address);
  if (space == Space::kNone) {
    return;
  }
  const Access access{address, spaces_.in_file(code), size, space, writes};
  counter_.add(block.linear_index(), access);
  if (space == Space::kShared && block.copies().is_on_its_way(address, size)) {
    block.fail("shared memory: an access where an asynchronous copy has not been waited for");
  }
  look_for_race(access);
}

void Watch::arrived(uintptr_t address, uint32_t size) {
  look_for_race({address, 0, size, Space::kShared, true});
}

void Watch::look_for_race(const Access& access) {
  const size_t offset =
      access.space == Space::kShared ? spaces_.offset_in_shared(access.address) : 0;
  const std::string race = races_.add(block.linear_index(), access, offset);
  if (!race.empty()) {
    block.fail(race);
  }
}

}  // namespace fusewheel::emulation

using fusewheel::emulation::watch;

FUSEWHEEL_EXPORT void fusewheel_emulation_watch(int on) {
  watch = on != 0 ? std::make_unique<fusewheel::emulation::Watch>() : nullptr;
}

// Stays as it is until the next call.
FUSEWHEEL_EXPORT const char* fusewheel_emulation_report() {
  static std::string report;
  report = watch == nullptr ? "[]" : watch->report();
  return report.c_str();
}

#define FUSEWHEEL_SEES(name, size, writes)                                               \
  extern "C" void name(void* address) {                                                  \
    if (watch != nullptr) {                                                              \
      watch->access(reinterpret_cast<uintptr_t>(address),                                \
                    reinterpret_cast<uintptr_t>(__builtin_return_address(0)), size, writes); \
    }                                                                                    \
  }

FUSEWHEEL_SEES(__tsan_read1, 1, false)
FUSEWHEEL_SEES(__tsan_read2, 2, false)
FUSEWHEEL_SEES(__tsan_read4, 4, false)
FUSEWHEEL_SEES(__tsan_read8, 8, false)
FUSEWHEEL_SEES(__tsan_read16, 16, false)
FUSEWHEEL_SEES(__tsan_unaligned_read2, 2, false)
FUSEWHEEL_SEES(__tsan_unaligned_read4, 4, false)
FUSEWHEEL_SEES(__tsan_unaligned_read8, 8, false)
FUSEWHEEL_SEES(__tsan_unaligned_read16, 16, false)
FUSEWHEEL_SEES(__tsan_write1, 1, true)
FUSEWHEEL_SEES(__tsan_write2, 2, true)
FUSEWHEEL_SEES(__tsan_write4, 4, true)
FUSEWHEEL_SEES(__tsan_write8, 8, true)
FUSEWHEEL_SEES(__tsan_write16, 16, true)
FUSEWHEEL_SEES(__tsan_unaligned_write2, 2, true)
FUSEWHEEL_SEES(__tsan_unaligned_write4, 4, true)
FUSEWHEEL_SEES(__tsan_unaligned_write8, 8, true)
FUSEWHEEL_SEES(__tsan_unaligned_write16, 16, true)

extern "C" {

void __tsan_read_range(void* address, unsigned long size) {
  if (watch != nullptr) {
    watch->access(reinterpret_cast<uintptr_t>(address),
                  reinterpret_cast<uintptr_t>(__builtin_return_address(0)),
                  static_cast<uint32_t>(size), false);
  }
}

void __tsan_write_range(void* address, unsigned long size) {
  if (watch != nullptr) {
    watch->access(reinterpret_cast<uintptr_t>(address),
                  reinterpret_cast<uintptr_t>(__builtin_return_address(0)),
                  static_cast<uint32_t>(size), true);
  }
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
