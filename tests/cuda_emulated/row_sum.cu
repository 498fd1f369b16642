// The row sum of common/reduce.h, and copies that lost one of its barriers. Prints how many results
// of the variant argv[1] names are wrong.

#include <cstdio>
#include <cstring>
#include <vector>

#include "common/reduce.h"

namespace fusewheel {
namespace {

enum class Missing { kNone, kBeforeWriting, kBeforeReading };

template <Missing missing>
__device__ float sum_of(float value) {
  if (missing == Missing::kNone) {
    return row_sum(value);
  }
  __shared__ float sums[kWarp];
  value = warp_sum(value);
  if (missing != Missing::kBeforeWriting) {
    __syncthreads();
  }
  if (threadIdx.x % kWarp == 0) {
    sums[threadIdx.x / kWarp] = value;
  }
  if (missing != Missing::kBeforeReading) {
    __syncthreads();
  }
  const unsigned warps = blockDim.x / kWarp;
  return warp_reduce<Plus>(sums[threadIdx.x & (warps - 1)], static_cast<int>(warps));
}

// Sum r of a thread is that of (thread + 1) * (r + 1).
template <Missing missing>
__global__ void sums(float* out, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const float value = static_cast<float>((threadIdx.x + 1) * (round + 1));
    out[round * blockDim.x + threadIdx.x] = sum_of<missing>(value);
  }
}

}  // namespace
}  // namespace fusewheel

int main(int argc, char** argv) {
  using namespace fusewheel;
  constexpr int kThreads = 128;
  constexpr int kRounds = 3;
  const auto is = [&](const char* name) { return argc > 1 && std::strcmp(argv[1], name) == 0; };
  const auto kernel = is("before_writing")   ? sums<Missing::kBeforeWriting>
                      : is("before_reading") ? sums<Missing::kBeforeReading>
                                             : sums<Missing::kNone>;
  std::vector<float> out(kThreads * kRounds);
  launch("sums", kernel, 1, kThreads, 0, nullptr, out.data(), kRounds);
  int wrong = 0;
  for (int i = 0; i < kThreads * kRounds; ++i) {
    wrong += out[i] != static_cast<float>(kThreads * (kThreads + 1) / 2 * (i / kThreads + 1));
  }
  std::printf("%d", wrong);
}
