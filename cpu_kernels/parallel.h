// Runs the work of a kernel on all threads.
#pragma once

#include <fusewheel/geometry.h>

#include "isa.h"

namespace fusewheel {

// Calls part(work, begin, end) for parts of [0, count) on all threads, with `grain` items in each.
void run_parts(int64_t count, int64_t grain, void (*part)(const void* work, int64_t, int64_t),
               const void* work);

}  // namespace fusewheel

namespace fusewheel::FUSEWHEEL_ISA {

// Fewer elements than this are not worth waking a thread.
constexpr int64_t kGrain = 16384;

// Calls work(begin, end) for parts of [0, count).
template <typename Work>
void parallel_for(int64_t count, int64_t grain, const Work& work) {
  run_parts(
      count, grain,
      [](const void* self, int64_t begin, int64_t end) {
        (*static_cast<const Work*>(self))(begin, end);
      },
      &work);
}

// Runs range(args, begin, end) over rows of `size` elements,
template <typename Args>
void parallel_rows(void (*range)(const Args&, int64_t, int64_t), const Args& args, int64_t count,
                   int64_t size) {
  parallel_for(count, kGrain / (size > 1 ? size : 1) + 1,
               [&](int64_t begin, int64_t end) { range(args, begin, end); });
}

// over chunks of rows with `numel` elements in all,
template <typename Args>
void parallel_chunks(void (*range)(const Args&, int64_t, int64_t), const Args& args, int64_t chunks,
                     int64_t numel) {
  parallel_for(chunks, numel > kGrain ? 1 : chunks,
               [&](int64_t begin, int64_t end) { range(args, begin, end); });
}

// over columns, in each of which there is one value per chunk,
template <typename Args>
void parallel_columns(void (*range)(const Args&, int64_t, int64_t), const Args& args, int64_t size,
                      int64_t chunks) {
  parallel_for(size, kGrain / chunks,
               [&](int64_t begin, int64_t end) { range(args, begin, end); });
}

// and over elements.
template <int operands>
void parallel_elements(void (*range)(const ElementwiseArgs<operands>&, int64_t, int64_t),
                       const ElementwiseArgs<operands>& args) {
  parallel_for(args.geometry.numel, kGrain,
               [&](int64_t begin, int64_t end) { range(args, begin, end); });
}

}  // namespace fusewheel::FUSEWHEEL_ISA
