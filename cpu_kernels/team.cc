#include "team.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace fusewheel {

namespace {

constexpr uint64_t kParts = 0xFFFFFFFF;

thread_local Team* mine = nullptr;

// Makes `team` the one of this thread for a while.
class Member {
 public:
  explicit Member(Team* team) : before_(mine) { mine = team; }
  ~Member() { mine = before_; }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

 private:
  Team* before_;
};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Longer and longer.
class Wait {
 public:
  void once() {
    constexpr int kPauses = 2000;  // some 50 us
    constexpr int kYields = 200;
    ++rounds_;
    if (rounds_ <= kPauses) {
      pause();
    } else if (rounds_ <= kPauses + kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  int rounds_ = 0;
};

}  // namespace

Team* Team::current() { return mine; }

void Team::gather(void (*work)(void* self), void* self) {
  uint32_t threads = 1;
#if !defined(__SANITIZE_THREAD__)
  torch_get_num_threads(&threads);
  const uint32_t processors = std::thread::hardware_concurrency();
  threads = processors == 0 ? threads : std::min(threads, processors);
#endif
  if (threads <= 1 || mine != nullptr) {
    return work(self);
  }
  Team team(threads);
  std::exception_ptr error;
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> begun{false};
  torch::stable::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    if (std::this_thread::get_id() != caller) {
      return team.help();
    }
    if (begun.exchange(true)) {
      return;
    }
    try {
      const Member member(&team);
      work(self);
    } catch (...) {
      error = std::current_exception();
    }
    team.over_.store(true, std::memory_order_release);
  });
  if (error) {
    std::rethrow_exception(error);
  }
}

// False where there is none to take.
bool Team::take_part() {
  uint64_t left = left_.load(std::memory_order_acquire);
  do {
    if ((left & kParts) == 0) {
      return false;
    }
  } while (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire));
  // The job stays as it is until this part is done.
  const int64_t begin = (job_.parts - static_cast<int64_t>(left & kParts)) * job_.each;
  try {
    job_.part(job_.work, begin, std::min(begin + job_.each, job_.count));
  } catch (...) {
    if (!failed_.exchange(true)) {
      error_ = std::current_exception();
    }
  }
  done_.fetch_add(1, std::memory_order_release);
  return true;
}

void Team::help() {
  Wait wait;
  while (!over_.load(std::memory_order_acquire)) {
    if (take_part()) {
      wait = {};
    } else {
      wait.once();
    }
  }
}

void Team::run(int64_t count, int64_t grain, void (*part)(const void*, int64_t, int64_t),
               const void* work) {
  const Member at_work(nullptr);  // what a part runs in parts is its own
  const int64_t most = std::min(threads_, (count + grain - 1) / grain);
  const int64_t each = (count + most - 1) / most;
  job_ = {part, work, count, each, (count + each - 1) / each};
  done_.store(0, std::memory_order_relaxed);
  const uint64_t number = (left_.load(std::memory_order_relaxed) >> 32) + 1;
  left_.store(number << 32 | static_cast<uint64_t>(job_.parts), std::memory_order_release);
  while (take_part()) {
  }
  Wait wait;
  while (done_.load(std::memory_order_acquire) != job_.parts) {
    wait.once();
  }
  if (failed_.exchange(false)) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

}  // namespace fusewheel
