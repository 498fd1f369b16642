// A team of threads that stays together for many pieces of work. PyTorch's threads are woken for each
// one, which takes as long as a small product.
//
// Who has no work looks for it for a while, then lets others run in between, then sleeps in between. The
// caller never waits for a thread to come, only for parts that one has begun: so it does not matter how
// many threads come, or when.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

namespace fusewheel {

class Team {
 public:
  // Calls work(self), and meanwhile every run_parts of this thread is done by a team, if there is one:
  // not where there is one thread, or this one belongs to PyTorch's threads at work.
  static void gather(void (*work)(void* self), void* self);

  // The team of this thread; null where it has none, or is at work on a part.
  static Team* current();

  // As run_parts, for more than one part.
  void run(int64_t count, int64_t grain, void (*part)(const void*, int64_t, int64_t),
           const void* work);

 private:
  explicit Team(int64_t threads) : threads_(threads) {}
  void help();
  bool take_part();

  // What run_parts is to do. It changes only when all parts are done.
  struct Job {
    void (*part)(const void*, int64_t, int64_t);
    const void* work;
    int64_t count;
    int64_t each;
    int64_t parts;
  };

  static constexpr int kLine = 64;

  const int64_t threads_;
  Job job_ = {};
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
  // The number of the job, in the upper half, and how many parts nobody has taken.
  alignas(kLine) std::atomic<uint64_t> left_{0};
  std::atomic<bool> over_{false};
  alignas(kLine) std::atomic<int64_t> done_{0};
};

}  // namespace fusewheel
