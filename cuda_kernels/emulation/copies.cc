#include "copies.h"

#include <cstring>
#include <utility>

#include "watch.h"

namespace fusewheel::emulation {

void Copies::begin_block(size_t threads) {
  threads_.assign(threads, {});
  on_their_way_.clear();
}

void Copies::begin(unsigned thread, void* to, const void* bytes) {
  Copy copy{to, {}};
  std::memcpy(copy.bytes.data(), bytes, kBytes);
  threads_[thread].begun.push_back(copy);
  on_their_way_.insert(reinterpret_cast<uintptr_t>(to) / kBytes);
}

void Copies::end_group(unsigned thread) {
  Thread& own = threads_[thread];
  own.groups.push_back(std::exchange(own.begun, {}));
}

void Copies::wait(unsigned thread, size_t left) {
  auto& groups = threads_[thread].groups;
  while (groups.size() > left) {
    for (const Copy& copy : groups.front()) {
      const auto address = reinterpret_cast<uintptr_t>(copy.to);
      std::memcpy(copy.to, copy.bytes.data(), kBytes);
      on_their_way_.erase(address / kBytes);
      if (watch != nullptr) {
        watch->arrived(address, kBytes);
      }
    }
    groups.pop_front();
  }
}

bool Copies::is_on_its_way(uintptr_t address, uint32_t size) const {
  return !on_their_way_.empty() && (on_their_way_.count(address / kBytes) > 0 ||
                                    on_their_way_.count((address + size - 1) / kBytes) > 0);
}

}  // namespace fusewheel::emulation
