// Threads for the glue: PyTorch's own pool, so that torch.set_num_threads is obeyed.
#pragma once

#include <fusewheel/elementwise.h>
#include <fusewheel/kernel.h>
#include <torch/csrc/stable/ops.h>

#include "isa.h"

#if defined(__SANITIZE_THREAD__)
#include <thread>
#include <vector>
#endif

namespace fusewheel {

// Fewer elements than this are not worth waking a thread.
constexpr int64_t kGrain = 16384;

template <typename Function>
void parallel_for(int64_t count, int64_t grain, const Function& function) {
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
    threads.emplace_back(function, begin, std::min(begin + grain, count));
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return;
#endif
  if (count <= grain) {
    function(0, count);
  } else {
    torch::stable::parallel_for(0, count, grain, function);
  }
}

// Runs range(args, begin, end) over rows of `size` elements,
template <typename Args>
void parallel_rows(void (*range)(const Args&, int64_t, int64_t), const Args& args, int64_t count,
                   int64_t size) {
  parallel_for(count, kGrain / std::max<int64_t>(size, 1) + 1,
               [&](int64_t begin, int64_t end) { range(args, begin, end); });
}

// over chunks of rows with `numel` elements in all,
template <typename Args>
void parallel_chunks(void (*range)(const Args&, int64_t, int64_t), const Args& args, int64_t chunks,
                     int64_t numel) {
  parallel_for(chunks, numel > kGrain ? 1 : chunks,
               [&](int64_t begin, int64_t end) { range(args, begin, end); });
}

// and over columns, in each of which there is one value per chunk.
template <typename Args>
void parallel_columns(void (*range)(const Args&, int64_t, int64_t), const Args& args, int64_t size,
                      int64_t chunks) {
  parallel_for(size, kGrain / chunks,
               [&](int64_t begin, int64_t end) { range(args, begin, end); });
}

template <int operands, typename Call>
void launch(void (*range)(const ElementwiseArgs<operands>&, int64_t, int64_t), const Call& call) {
  parallel_for(call.args.geometry.numel, kGrain,
               [&](int64_t begin, int64_t end) { range(call.args, begin, end); });
}

}  // namespace fusewheel
