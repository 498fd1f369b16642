#include "counter.h"

#include <algorithm>
#include <iterator>
#include <sstream>

namespace fusewheel::emulation {
namespace {

constexpr unsigned kBanks = 32;
constexpr uintptr_t kWord = 4;         // bytes of a bank
constexpr uint32_t kPassBytes = 128;  // that shared memory serves at once

using Accesses = std::vector<std::pair<uintptr_t, uint32_t>>;

// The different units of `size` bytes that accesses touch, in order.
std::vector<uintptr_t> units(Accesses::const_iterator from, Accesses::const_iterator to,
                             uintptr_t size) {
  std::vector<uintptr_t> found;
  for (; from != to; ++from) {
    for (uintptr_t i = from->first / size; i <= (from->first + from->second - 1) / size; ++i) {
      found.push_back(i);
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

uint64_t different_bytes(Accesses accesses) {
  std::sort(accesses.begin(), accesses.end());
  uint64_t bytes = 0;
  uintptr_t end = 0;
  for (const auto& [address, size] : accesses) {
    const uintptr_t from = std::max(address, end);
    end = std::max(end, address + size);
    bytes += end > from ? end - from : 0;
  }
  return bytes;
}

// Lanes that ask for more than a word are served in groups of 128 bytes.
void count_passes(const Accesses& accesses, uint32_t size, Instruction& total) {
  const size_t together = std::max<size_t>(1, kPassBytes / std::max<uint32_t>(size, kWord));
  for (size_t i = 0; i < accesses.size(); i += together) {
    const auto from = accesses.begin() + i;
    const auto to = accesses.begin() + std::min(i + together, accesses.size());
    std::array<unsigned, kBanks> words{};
    const auto found = units(from, to, kWord);
    for (const uintptr_t word : found) {
      ++words[word % kBanks];
    }
    total.passes += *std::max_element(words.begin(), words.end());
    total.least_passes += (found.size() + kBanks - 1) / kBanks;
  }
}

}  // namespace

void Counter::begin_launch(const char* name, uintptr_t kernel, dim3 grid, dim3 size,
                           size_t shared) {
  launches_.push_back({name, kernel, grid, size, shared, 0, 0, 0, {}});
  sectors_.clear();
  kept_ = sectors_kept();
  const unsigned threads = size.x * size.y * size.z;
  warps_.clear();
  warps_.resize((threads + kWarpSize - 1) / kWarpSize);
}

void Counter::begin_block(uint64_t number) {
  block_ = number + 1;
  fetched_.assign(warps_.size(), 0);
}

void Counter::add(unsigned thread, const Access& access) {
  warps_[thread / kWarpSize][thread % kWarpSize].push_back(access);
}

void Counter::finish_all() {
  for (unsigned warp = 0; warp < warps_.size(); ++warp) {
    finish(warp);
  }
}

void Counter::finish(unsigned warp) {
  groups_.clear();
  warp_ = warp;
  for (auto& lane : warps_[warp]) {
    gather(lane);
    lane.clear();
  }
  for (const Group& group : groups_) {
    count(group);
  }
}

// Lanes mostly do the same in the same order, so the next group is the first place to look.
void Counter::gather(const std::vector<Access>& lane) {
  std::map<Key, unsigned> turns;
  size_t next = 0;
  for (const Access& access : lane) {
    const Key key{access.place, access.space, access.size, access.writes};
    const unsigned turn = turns[key]++;
    const auto is_same = [&](const Group& group) { return group.turn == turn && group.key == key; };
    auto found = groups_.begin() + next;
    if (found == groups_.end() || !is_same(*found)) {
      found = std::find_if(groups_.begin(), groups_.end(), is_same);
    }
    if (found == groups_.end()) {
      groups_.push_back({key, turn, {}});
      found = std::prev(groups_.end());
    }
    found->accesses.emplace_back(access.address, access.size);
    next = found - groups_.begin() + 1;
  }
}

void Counter::count(const Group& group) {
  const auto& [place, space, size, writes] = group.key;
  const Accesses& accesses = group.accesses;
  Instruction& total = launches_.back().instructions[group.key];
  const uint64_t bytes = different_bytes(accesses);
  total.executions += 1;
  total.lanes += accesses.size();
  total.bytes += bytes;
  if (space == Space::kShared) {
    count_passes(accesses, size, total);
    return;
  }
  const auto sectors = units(accesses.begin(), accesses.end(), kSector);
  total.sectors += sectors.size();
  total.needed += (bytes + kSector - 1) / kSector;
  for (const uintptr_t sector : sectors) {
    note_sector(sector, writes);
  }
}

void Counter::note_sector(uintptr_t number, bool writes) {
  Sector& sector = sectors_[number];
  Launch& launch = launches_.back();
  uint64_t& fetched = fetched_[warp_];
  const bool is_own = sector.block == block_ && sector.warp == warp_;
  const bool is_kept =
      sector.block != 0 && (!is_own || fetched - sector.fetched <= kept_ / warps_.size());
  const bool is_written = is_kept && sector.written;
  launch.read += !writes && !is_kept;
  launch.written += writes && !is_written;
  fetched += !is_kept;
  sector = {block_, warp_, fetched, writes || is_written};
}

std::string Counter::report() const {
  std::ostringstream out;
  const auto size = [](dim3 d) {
    return "[" + std::to_string(d.x) + "," + std::to_string(d.y) + "," + std::to_string(d.z) + "]";
  };
  const char* between = "[";
  for (const Launch& launch : launches_) {
    out << between << "{\"name\":\"" << launch.name << "\",\"kernel\":" << launch.kernel
        << ",\"grid\":" << size(launch.grid) << ",\"block\":" << size(launch.size)
        << ",\"shared\":" << launch.shared << ",\"read\":" << launch.read * kSector
        << ",\"written\":" << launch.written * kSector
        << ",\"products\":" << launch.products << ",\"instructions\":[";
    const char* comma = "";
    for (const auto& [key, i] : launch.instructions) {
      const auto& [place, space, width, writes] = key;
      out << comma << "{\"place\":" << place << ",\"shared\":" << (space == Space::kShared)
          << ",\"writes\":" << writes << ",\"width\":" << width
          << ",\"executions\":" << i.executions << ",\"lanes\":" << i.lanes
          << ",\"bytes\":" << i.bytes << ",\"sectors\":" << i.sectors
          << ",\"needed\":" << i.needed << ",\"passes\":" << i.passes
          << ",\"least_passes\":" << i.least_passes << "}";
      comma = ",";
    }
    out << "]}";
    between = ",";
  }
  out << (launches_.empty() ? "[]" : "]");
  return out.str();
}

}  // namespace fusewheel::emulation
