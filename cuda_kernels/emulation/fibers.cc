#include "fibers.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "watch.h"

namespace fusewheel::emulation {
namespace {

uint3 unravel(uint64_t i, dim3 size) {
  return {static_cast<unsigned>(i % size.x), static_cast<unsigned>(i / size.x % size.y),
          static_cast<unsigned>(i / size.x / size.y)};
}

}  // namespace

Block block;

void Block::run(const char* name, const void* kernel, dim3 grid, dim3 size, size_t shared,
                std::function<void()> body) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const char* seed = std::getenv("FUSEWHEEL_EMULATION_SEED");
  random_.seed(seed == nullptr ? 0 : std::strtoul(seed, nullptr, 10));
  grid_size = grid;
  block_size = size;
  body_ = std::move(body);
  shared_.reset(static_cast<char*>(std::malloc(shared)));
  const uint64_t blocks = uint64_t{1} * grid.x * grid.y * grid.z;
  const uint64_t start = random_() % blocks;
  uint64_t step = random_() % blocks + 1;
  while (std::gcd(step, blocks) != 1) {
    ++step;
  }
  if (watch != nullptr) {
    watch->begin_launch(name, kernel, grid, size, shared);
  }
  for (uint64_t i = 0, at = start; i < blocks; ++i, at = (at + step) % blocks) {
    block_index = unravel(at, grid);
    if (shared > 0) {
      std::memset(shared_.get(), 0xff, shared);  // all NaN: nobody may read what nobody wrote
    }
    if (watch != nullptr) {
      watch->begin_block(at);
    }
    run_block();
    if (watch != nullptr) {
      watch->end_block();
    }
    if (!error_.empty()) {
      throw std::runtime_error(std::string(name) + ": emulation: " + std::exchange(error_, ""));
    }
  }
}

void Block::wait_for_block() {
  waiting_.push_back(running);
  if (waiting_.size() == threads_.size()) {
    release(waiting_);
    rank_warps();
    if (watch != nullptr) {
      watch->block_met();
    }
  }
  pause();
}

uint64_t Block::exchange(unsigned mask, uint64_t value, unsigned from, bool orders) {
  const unsigned first = warp() * kWarpSize;
  const auto lanes = std::min<size_t>(kWarpSize, threads_.size() - first);
  Warp& warp = warps_[first / kWarpSize];
  if (mask != 0xffffffffu) {
    fail("only shuffles of whole warps are known");
  }
  const unsigned turn = warp.turn;
  warp.values[turn][lane()] = value;
  warp.waiting.push_back(running);
  if (warp.waiting.size() == lanes) {
    warp.turn = 1 - turn;
    release(warp.waiting);
    if (watch != nullptr) {
      watch->warp_met(first / kWarpSize, orders);
    }
  }
  pause();
  return from < lanes ? warp.values[turn][from] : ~uint64_t{0};
}

void Block::together(void* own, void (*work)(void* const* lanes)) {
  const unsigned first = warp() * kWarpSize;
  if (threads_.size() - first < kWarpSize) {
    fail("an instruction of whole warps in a warp that is none");
  }
  Warp& warp = warps_[first / kWarpSize];
  warp.brought[lane()] = own;
  warp.waiting.push_back(running);
  if (warp.waiting.size() == kWarpSize) {
    work(warp.brought);
    release(warp.waiting);
    if (watch != nullptr) {
      watch->warp_met(first / kWarpSize, false);
    }
  }
  pause();
}

void Block::fail(const std::string& message) {
  error_ = message;
  running->fiber->switch_to(outside_);
}

bool Block::is_own(uintptr_t address) const {
  const auto threads = reinterpret_cast<uintptr_t>(threads_.data());
  return running->fiber->holds(address) ||
         address - threads < threads_.size() * sizeof(Thread);
}

void Block::run_block() {
  const unsigned count = block_size.x * block_size.y * block_size.z;
  threads_.resize(count);
  warps_.resize((count + kWarpSize - 1) / kWarpSize);
  copies_.begin_block(count);
  for (Warp& warp : warps_) {
    warp.turn = 0;
    warp.waiting.clear();
    warp.ready.clear();
  }
  for (unsigned i = 0; i < count; ++i) {
    threads_[i] = {unravel(i, block_size), nullptr};
    warp_of(threads_[i]).ready.push_back(&threads_[i]);
  }
  rank_warps();
  finished_ = 0;
  waiting_.clear();
  free_.clear();
  for (const auto& fiber : fibers_) {
    free_.push_back(fiber.get());
  }
  running = pick();
  begin(outside_);
}

void Block::rank_warps() {
  order_.resize(warps_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::shuffle(order_.begin(), order_.end(), random_);
  ready_ranks_ = 0;
  for (unsigned rank = 0; rank < order_.size(); ++rank) {
    Warp& warp = warps_[order_[rank]];
    warp.rank = rank;
    ready_ranks_ |= static_cast<uint32_t>(!warp.ready.empty()) << rank;
  }
}

Thread* Block::pick() {
  if (ready_ranks_ == 0) {
    return nullptr;
  }
  Warp& warp = warps_[order_[__builtin_ctz(ready_ranks_)]];
  std::swap(warp.ready.back(), warp.ready[random_() % warp.ready.size()]);
  Thread* next = warp.ready.back();
  warp.ready.pop_back();
  if (warp.ready.empty()) {
    ready_ranks_ &= ready_ranks_ - 1;
  }
  return next;
}

void Block::release(std::vector<Thread*>& threads) {
  for (Thread* thread : threads) {
    Warp& warp = warp_of(*thread);
    warp.ready.push_back(thread);
    ready_ranks_ |= uint32_t{1} << warp.rank;
  }
  threads.clear();
}

void Block::pause() {
  Thread* self = running;
  running = pick();
  if (running == self) {
    return;
  }
  if (running == nullptr) {
    running = self;
    fail(finished_ > 0 ? "some threads wait for others that have left the kernel"
                       : "the threads wait at different barriers");
  }
  if (running->fiber == nullptr) {
    begin(*self->fiber);
  } else {
    self->fiber->switch_to(*running->fiber);
  }
}

void Block::begin(Stack& from) {
  if (free_.empty()) {
    fibers_.push_back(std::make_unique<Stack>());
    free_.push_back(fibers_.back().get());
  }
  running->fiber = free_.back();
  free_.pop_back();
  running->fiber->prepare(&Block::enter);
  from.switch_to(*running->fiber);
}

void Block::enter() { block.work(); }

void Block::work() {
  Stack* self = running->fiber;
  for (;;) {
    body_();
    ++finished_;
    running = pick();
    if (running == nullptr) {
      break;
    }
    if (running->fiber != nullptr) {
      free_.push_back(self);
      self->switch_to(*running->fiber);  // for good: whoever reuses this fiber begins anew
    }
    running->fiber = self;
  }
  if (finished_ < threads_.size()) {
    error_ = "some threads wait for others that have left the kernel";
  }
  self->switch_to(outside_);
}

}  // namespace fusewheel::emulation
