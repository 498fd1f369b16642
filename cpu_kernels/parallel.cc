#include "parallel.h"

#include <torch/csrc/stable/ops.h>

#if defined(__SANITIZE_THREAD__)
#include <algorithm>
#include <thread>
#include <vector>
#endif

namespace fusewheel {

// PyTorch's own threads, so that torch.set_num_threads is obeyed.
void run_parts(int64_t count, int64_t grain, void (*part)(const void*, int64_t, int64_t),
               const void* work) {
  if (count <= 0) {
    return;
  }
#if defined(__SANITIZE_THREAD__)
  // It does not see how PyTorch's threads wait for each other, and the fewest tests have so many
  // elements: a few threads that it knows, for everything.
  constexpr int64_t kThreads = 4;
  grain = (count + kThreads - 1) / kThreads;
  std::vector<std::thread> threads;
  for (int64_t begin = 0; begin < count; begin += grain) {
    threads.emplace_back(part, work, begin, std::min(begin + grain, count));
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return;
#endif
  if (count <= grain) {
    part(work, 0, count);
  } else {
    torch::stable::parallel_for(0, count, grain, [part, work](int64_t begin, int64_t end) {
      part(work, begin, end);
    });
  }
}

}  // namespace fusewheel
