// One block at a time, a fiber for each of its threads that has to wait for others.
//
// A fiber runs threads to their ends, one after another; only a thread that meets a barrier keeps
// its fiber, and the next thread continues on another one.
#pragma once

#include "stack.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint3 {
  unsigned x, y, z;
};

namespace fusewheel::emulation {

constexpr unsigned kWarpSize = 32;

struct Thread {
  uint3 index;
  Stack* fiber;  // null until the thread has begun
};

// Where the lanes of a warp meet. Two sets of values: a lane may bring its next value while others
// still have to read this one.
struct Warp {
  uint64_t values[2][kWarpSize];
  unsigned turn;
  unsigned rank;
  std::vector<Thread*> waiting;
  std::vector<Thread*> ready;
};

class Block {
 public:
  dim3 grid_size;
  dim3 block_size;
  uint3 block_index;
  Thread* running = nullptr;

  // Runs the whole grid.
  void run(const char* name, dim3 grid, dim3 size, size_t shared, std::function<void()> body) {
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
    for (uint64_t i = 0, at = start; i < blocks; ++i, at = (at + step) % blocks) {
      block_index = unravel(at, grid);
      if (shared > 0) {
        std::memset(shared_.get(), 0xff, shared);  // all NaN: nobody may read what nobody wrote
      }
      run_block();
      if (!error_.empty()) {
        throw std::runtime_error(std::string(name) + ": emulation: " + std::exchange(error_, ""));
      }
    }
  }

  void* shared() const { return shared_.get(); }

  unsigned linear_index() const { return static_cast<unsigned>(running - threads_.data()); }
  int lane() const { return static_cast<int>(linear_index() % kWarpSize); }

  void wait_for_block() {
    waiting_.push_back(running);
    if (waiting_.size() == threads_.size()) {
      release(waiting_);
      rank_warps();
    }
    pause();
  }

  // Every lane of the warp brings a value and gets that of lane `from`.
  uint64_t exchange(unsigned mask, uint64_t value, unsigned from) {
    const unsigned first = linear_index() / kWarpSize * kWarpSize;
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
    }
    pause();
    return from < lanes ? warp.values[turn][from] : ~uint64_t{0};
  }

  // Ends the launch: the caller of run() gets an exception. Nobody comes back from the switch, but
  // the compiler may not know: AddressSanitizer clears the stack before a call without return, and
  // does not find this one.
  void fail(const char* message) {
    error_ = message;
    running->fiber->switch_to(outside_);
  }

 private:
  static uint3 unravel(uint64_t i, dim3 size) {
    return {static_cast<unsigned>(i % size.x), static_cast<unsigned>(i / size.x % size.y),
            static_cast<unsigned>(i / size.x / size.y)};
  }

  void run_block() {
    const unsigned count = block_size.x * block_size.y * block_size.z;
    threads_.resize(count);
    warps_.resize((count + kWarpSize - 1) / kWarpSize);
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

  Warp& warp_of(const Thread& thread) { return warps_[(&thread - threads_.data()) / kWarpSize]; }

  // A new order of the warps: each runs ahead of all behind it as far as the barriers let it. Which
  // lane of a warp goes first is drawn every time.
  void rank_warps() {
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

  // The next thread that can go on, or null.
  Thread* pick() {
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

  void release(std::vector<Thread*>& threads) {
    for (Thread* thread : threads) {
      Warp& warp = warp_of(*thread);
      warp.ready.push_back(thread);
      ready_ranks_ |= uint32_t{1} << warp.rank;
    }
    threads.clear();
  }

  // Parks the running thread until it is picked again.
  void pause() {
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

  // Starts the running thread on a fiber of its own; comes back when somebody resumes `from`.
  void begin(Stack& from) {
    if (free_.empty()) {
      fibers_.push_back(std::make_unique<Stack>());
      free_.push_back(fibers_.back().get());
    }
    running->fiber = free_.back();
    free_.pop_back();
    running->fiber->prepare(&Block::enter);
    from.switch_to(*running->fiber);
  }

  static void enter();

  void work() {
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

  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  std::mutex mutex_;
  std::mt19937 random_;
  std::function<void()> body_;
  std::unique_ptr<char, Free> shared_;
  std::string error_;
  Stack outside_;
  std::vector<std::unique_ptr<Stack>> fibers_;
  std::vector<Stack*> free_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned> order_;
  uint32_t ready_ranks_ = 0;  // which warps, by their place in the order, have threads to run
  size_t finished_ = 0;
  std::vector<Thread*> waiting_;
};

inline Block block;

inline void Block::enter() { block.work(); }

template <typename T>
T* dynamic_shared() {
  return static_cast<T*>(block.shared());
}

}  // namespace fusewheel::emulation
