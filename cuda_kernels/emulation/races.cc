#include "races.h"

#include <cstdio>

namespace fusewheel::emulation {
namespace {

constexpr uint16_t kSeveralLanes = kWarpSize;
constexpr uint64_t kSeveralBlocks = ~uint64_t{0};

constexpr char kUnwritten[] = "reads shared memory that its block has not written";
constexpr char kReadsWritten[] = "reads what another thread has written";
constexpr char kWritesWritten[] = "writes where another thread has written";
constexpr char kWritesRead[] = "writes where another thread has read";

}  // namespace

void Races::begin_launch(size_t shared, dim3 size) {
  const unsigned threads = size.x * size.y * size.z;
  synced_.assign((threads + kWarpSize - 1) / kWarpSize, 0);
  if (shared_.size() < shared) {
    shared_.resize(shared);
  }
  global_.clear();
  page_ = nullptr;
}

void Races::begin_block(uint64_t number) {
  block_ = number + 1;
  first_barrier_ = ++barrier_;
}

bool Races::is_before(const Moment& earlier, const Moment& now) {
  return earlier.barrier < now.barrier ||
         (earlier.warp == now.warp &&
          (earlier.synced < now.synced || earlier.lane == now.lane));
}

void Races::note_read(Byte& byte, const Moment& now) {
  Moment& last = byte.read;
  if (last.warp != now.warp) {
    byte.other_read = last;
    last = now;
  } else if (last.barrier == now.barrier && last.synced == now.synced && last.lane != now.lane) {
    last.lane = kSeveralLanes;
  } else {
    last = now;
  }
}

Races::Byte& Races::global_byte(uintptr_t address) {
  const uintptr_t number = address / kPageBytes;
  if (page_ == nullptr || number != page_number_) {
    auto& page = global_[number];
    if (page == nullptr) {
      page = std::make_unique<Page>();
    }
    page_ = page.get();
    page_number_ = number;
  }
  return page_->bytes[address % kPageBytes];
}

const char* Races::check(const Byte& byte, const Moment& now, const Access& access) const {
  if (access.space == Space::kShared && !access.writes && byte.write.barrier < first_barrier_) {
    return kUnwritten;
  }
  if (!is_before(byte.write, now)) {
    return access.writes ? kWritesWritten : kReadsWritten;
  }
  if (access.writes && (!is_before(byte.read, now) || !is_before(byte.other_read, now))) {
    return kWritesRead;
  }
  return nullptr;
}

// Blocks run one after another here, on a GPU in any order and side by side.
const char* Races::check_blocks(Byte& byte, const Access& access) const {
  const auto is_foreign = [&](uint64_t block) { return block != 0 && block != block_; };
  if (is_foreign(byte.writing_block)) {
    return access.writes ? kWritesWritten : kReadsWritten;
  }
  if (access.writes && is_foreign(byte.reading_block)) {
    return kWritesRead;
  }
  uint64_t& last = access.writes ? byte.writing_block : byte.reading_block;
  last = is_foreign(last) ? kSeveralBlocks : block_;
  return nullptr;
}

std::string Races::add(unsigned thread, const Access& access, size_t offset_in_shared) {
  const auto warp = static_cast<uint16_t>(thread / kWarpSize);
  const Moment now{barrier_, synced_[warp], warp, static_cast<uint16_t>(thread % kWarpSize)};
  const bool is_global = access.space == Space::kGlobal;
  const char* wrong = nullptr;
  const char* why = ", and no barrier is between them";
  for (uint32_t i = 0; i < access.size && wrong == nullptr; ++i) {
    Byte& byte = is_global ? global_byte(access.address + i) : shared_[offset_in_shared + i];
    if (is_global) {
      wrong = check_blocks(byte, access);
      why = wrong != nullptr ? ", in another block" : why;
    }
    wrong = wrong != nullptr ? wrong : check(byte, now, access);
    if (access.writes) {
      byte.write = now;
    } else {
      note_read(byte, now);
    }
  }
  if (wrong == nullptr) {
    return "";
  }
  char who[64];
  std::snprintf(who, sizeof(who), "thread %u, at 0x%zx, ", thread,
                static_cast<size_t>(access.place));
  return std::string(is_global ? "global" : "shared") + " memory: " + who + wrong +
         (wrong == kUnwritten ? "" : why);
}

}  // namespace fusewheel::emulation
