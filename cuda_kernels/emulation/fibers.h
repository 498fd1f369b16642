// One block at a time, a fiber for each of its threads that has to wait for others.
//
// A fiber runs threads to their ends, one after another; only a thread that meets a barrier keeps
// its fiber, and the next thread continues on another one.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "copies.h"
#include "stack.h"

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
  void* brought[kWarpSize];
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
  void run(const char* name, const void* kernel, dim3 grid, dim3 size, size_t shared,
           std::function<void()> body);

  void* shared() const { return shared_.get(); }
  unsigned linear_index() const { return static_cast<unsigned>(running - threads_.data()); }
  int lane() const { return static_cast<int>(linear_index() % kWarpSize); }
  unsigned warp() const { return linear_index() / kWarpSize; }

  void wait_for_block();

  // Every lane of the warp brings a value and gets that of lane `from`. `orders`: what each has
  // written is then seen by the others; a shuffle does not promise that.
  uint64_t exchange(unsigned mask, uint64_t value, unsigned from, bool orders = false);

  // Every lane of the warp brings something of its own; the last to come calls work() for all of them.
  void together(void* own, void (*work)(void* const* lanes));

  // Ends the launch: the caller of run() gets an exception. Nobody comes back from the switch, but
  // the compiler may not know: AddressSanitizer clears the stack before a call without return, and
  // does not find this one.
  void fail(const std::string& message);

  Copies& copies() { return copies_; }

  // Whether an address is on the running thread's stack, or in what it knows of itself.
  bool is_own(uintptr_t address) const;

 private:
  void run_block();
  Warp& warp_of(const Thread& thread) { return warps_[(&thread - threads_.data()) / kWarpSize]; }

  // A new order of the warps: each runs ahead of all behind it as far as the barriers let it. Which
  // lane of a warp goes first is drawn every time.
  void rank_warps();

  // The next thread that can go on, or null.
  Thread* pick();
  void release(std::vector<Thread*>& threads);

  // Parks the running thread until it is picked again.
  void pause();

  // Starts the running thread on a fiber of its own; comes back when somebody resumes `from`.
  void begin(Stack& from);
  static void enter();
  void work();

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
  Copies copies_;
};

// Defined beside the functions of Block: they are not compiled with the kernels, whose accesses to
// memory are watched.
extern Block block;

template <typename T>
T* dynamic_shared() {
  return static_cast<T*>(block.shared());
}

}  // namespace fusewheel::emulation
