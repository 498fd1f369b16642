// Kernels that move too much or race, and their neighbours that do not; argv[1] names the one to run.
// Prints what was counted.

#include <fusewheel/export.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "common/launch.h"
#include "common/vector.h"

FUSEWHEEL_EXPORT void fusewheel_emulation_watch(int on);
FUSEWHEEL_EXPORT const char* fusewheel_emulation_report();

namespace fusewheel {
namespace {

constexpr int kThreads = 64;
constexpr int kBlocks = 2;
constexpr int kElements = kThreads * kBlocks;

__device__ int thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

__global__ void copies(const float* in, float* out) { out[thread()] = in[thread()]; }

__global__ void copies_vectors(const float* in, float* out) {
  float values[4];
  load(in + thread() * 4, values);
  store(out + thread() * 4, values);
}

__global__ void loads_apart(const float* in, float* out) { out[thread()] = in[thread() * 8]; }

__global__ void loads_one(const float* in, float* out) { out[thread()] = in[0]; }

__global__ void loads_in_half_the_lanes(const float* in, float* out) {
  if (threadIdx.x % 2 == 0) {
    out[thread()] = in[thread()];
  }
}

// Lanes that skip a turn of a loop, with a shuffle in each turn.
__global__ void loads_in_turns(const float* in, float* out) {
  float sum = 0;
  for (int i = 0; i < 2; ++i) {
    const float value = i == 1 || threadIdx.x % 32 < 16 ? in[i * kElements + thread()] : 0.0f;
    sum += __shfl_xor_sync(0xffffffffu, value, 1);
  }
  out[thread()] = sum;
}

// Each lane of a warp writes `stride` words from the one before it.
__global__ void fills(float* out, int stride) {
  FUSEWHEEL_DYNAMIC_SHARED(float, shared);
  shared[threadIdx.x * stride] = 1;
  out[thread()] = shared[threadIdx.x * stride];
}

__global__ void fills_vectors(float* out, int stride) {
  FUSEWHEEL_DYNAMIC_SHARED(float, shared);
  const float values[4] = {1, 1, 1, 1};
  store(shared + threadIdx.x * stride, values);
  out[thread()] = shared[threadIdx.x * stride];
}

enum class Between { kNothing, kShuffle, kWarpBarrier, kBarrier };

template <Between between>
__device__ void meet() {
  if constexpr (between == Between::kShuffle) {
    __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  } else if constexpr (between == Between::kWarpBarrier) {
    __syncwarp();
  } else if constexpr (between == Between::kBarrier) {
    __syncthreads();
  }
}

// Reads what the thread at `distance` has written.
template <Between between>
__global__ void exchanges(float* out, unsigned distance) {
  __shared__ float values[kThreads];
  values[threadIdx.x] = 1;
  meet<between>();
  out[thread()] = values[threadIdx.x ^ distance];
}

// The second round overwrites what others may still have to read of the first.
template <Between between>
__global__ void exchanges_twice(float* out) {
  __shared__ float values[kThreads];
  for (int round = 0; round < 2; ++round) {
    values[threadIdx.x] = static_cast<float>(round);
    __syncthreads();
    out[round * kElements + thread()] = values[threadIdx.x ^ 32];
    meet<between>();
  }
}

__global__ void all_write_shared(float* out) {
  __shared__ float value;
  value = static_cast<float>(threadIdx.x);
  __syncthreads();
  out[thread()] = value;
}

// Written by the first block alone, whose memory the others do not have.
__global__ void reads_unwritten(float* out) {
  __shared__ float values[kThreads];
  if (blockIdx.x == 0) {
    values[threadIdx.x] = 1;
  }
  __syncthreads();
  out[thread()] = values[threadIdx.x];
}

__global__ void blocks_add(float* out) {
  if (threadIdx.x == 0) {
    out[0] += 1;
  }
}

__global__ void blocks_write(float* out) {
  if (threadIdx.x == 0) {
    out[0] = 1;
  }
}

__global__ void block_reads_another(const float* in, float* out) {
  if (blockIdx.x == 0) {
    out[threadIdx.x] = 1;
  } else {
    out[thread()] = in[threadIdx.x];
  }
}

template <Between between>
__global__ void exchanges_through_global(float* out) {
  out[thread()] = 1;
  meet<between>();
  out[kElements + thread()] = out[thread() ^ 32];
}

void run(const char* name, const float* in, float* out) {
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
  const auto go = [&](auto kernel, auto... arguments) {
    launch(name, kernel, kBlocks, kThreads, kThreads * 8 * sizeof(float), nullptr, arguments...);
  };
  if (is("copies")) return go(copies, in, out);
  if (is("copies_vectors")) return go(copies_vectors, in, out);
  if (is("loads_apart")) return go(loads_apart, in, out);
  if (is("loads_one")) return go(loads_one, in, out);
  if (is("loads_in_half_the_lanes")) return go(loads_in_half_the_lanes, in, out);
  if (is("loads_in_turns")) return go(loads_in_turns, in, out);
  if (is("fills")) return go(fills, out, 1);
  if (is("fills_every_second")) return go(fills, out, 2);
  if (is("fills_vectors")) return go(fills_vectors, out, 4);
  if (is("fills_every_second_vector")) return go(fills_vectors, out, 8);
  if (is("no_barrier")) return go(exchanges<Between::kNothing>, out, 32u);
  if (is("warp_barrier_for_a_block")) return go(exchanges<Between::kWarpBarrier>, out, 32u);
  if (is("shuffle_for_a_barrier")) return go(exchanges<Between::kShuffle>, out, 1u);
  if (is("warp_barrier")) return go(exchanges<Between::kWarpBarrier>, out, 1u);
  if (is("barrier")) return go(exchanges<Between::kBarrier>, out, 32u);
  if (is("no_second_barrier")) return go(exchanges_twice<Between::kNothing>, out);
  if (is("second_barrier")) return go(exchanges_twice<Between::kBarrier>, out);
  if (is("all_write_shared")) return go(all_write_shared, out);
  if (is("reads_unwritten")) return go(reads_unwritten, out);
  if (is("blocks_add")) return go(blocks_add, out);
  if (is("blocks_write")) return go(blocks_write, out);
  if (is("block_reads_another")) return go(block_reads_another, out, out);
  if (is("no_barrier_through_global")) return go(exchanges_through_global<Between::kNothing>, out);
  if (is("barrier_through_global")) return go(exchanges_through_global<Between::kBarrier>, out);
  throw std::runtime_error("no such kernel");
}

}  // namespace
}  // namespace fusewheel

int main(int, char** argv) {
  using namespace fusewheel;
  struct alignas(32) Sector {
    float values[8];
  };
  const std::vector<Sector> in(kElements);
  std::vector<Sector> out(kElements);
  fusewheel_emulation_watch(1);
  try {
    run(argv[1], in.front().values, out.front().values);
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::printf("%s\n", fusewheel_emulation_report());
}
