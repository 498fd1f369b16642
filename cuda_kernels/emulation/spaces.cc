#include "spaces.h"

#include <link.h>
#include <pthread.h>

#include "fibers.h"

namespace fusewheel::emulation {
namespace {

Range stack_of_this_thread() {
  pthread_attr_t attributes;
  void* from = nullptr;
  size_t size = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &from, &size);
    pthread_attr_destroy(&attributes);
  }
  return {reinterpret_cast<uintptr_t>(from), size};
}

struct Segments {
  uintptr_t base = 0;
  Range writable;
  std::vector<Range> others;
};

// The segments of the library, or the program, that holds `block`.
int find_segments(dl_phdr_info* info, size_t, void* result) {
  const auto wanted = reinterpret_cast<uintptr_t>(&block);
  Segments found;
  found.base = info->dlpi_addr;
  bool is_ours = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) {
      continue;
    }
    const Range range{info->dlpi_addr + header.p_vaddr, header.p_memsz};
    if (range.has(wanted)) {
      is_ours = true;
      found.writable = range;
    } else {
      found.others.push_back(range);
    }
  }
  if (is_ours) {
    *static_cast<Segments*>(result) = found;
  }
  return is_ours ? 1 : 0;
}

}  // namespace

Spaces::Spaces() {
  Segments segments;
  dl_iterate_phdr(find_segments, &segments);
  base_ = segments.base;
  writable_ = segments.writable;
  constants_ = segments.others;
}

void Spaces::begin_launch(size_t dynamic_shared) {
  dynamic_ = {reinterpret_cast<uintptr_t>(block.shared()), dynamic_shared};
  stack_ = stack_of_this_thread();
}

Space Spaces::of(uintptr_t address) const {
  if (block.is_own(address) || stack_.has(address)) {
    return Space::kNone;
  }
  if (dynamic_.has(address)) {
    return Space::kShared;
  }
  if (writable_.has(address)) {
    const Range state{reinterpret_cast<uintptr_t>(&block), sizeof(block)};
    return state.has(address) ? Space::kNone : Space::kShared;
  }
  for (const Range& range : constants_) {
    if (range.has(address)) {
      return Space::kNone;
    }
  }
  return Space::kGlobal;
}

}  // namespace fusewheel::emulation
