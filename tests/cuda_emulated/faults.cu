// Kernels with a mistake each; argv[1] names the one to run. Those that fill shared memory make their
// mistake by the number of bytes in argv[2].

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "common/launch.h"
#include "common/vector.h"

namespace fusewheel {
namespace {

__global__ void reads_beyond_end(const float* in, float* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= count) {
    out[0] = in[i];
  }
}

__global__ void writes_beyond_shared(float* out, int count) {
  FUSEWHEEL_DYNAMIC_SHARED(float, shared);
  shared[threadIdx.x + 1] = 1;
  __syncthreads();
  out[0] = shared[count];
}

__global__ void leaves_before_barrier(float* out) {
  if (threadIdx.x == 7) {
    return;
  }
  __syncthreads();
  out[0] = 1;
}

__global__ void leaves_before_shuffle(float* out) {
  if (threadIdx.x != 7) {
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  }
}

__global__ void fills_shared(float* out, int count) {
  FUSEWHEEL_DYNAMIC_SHARED(float, shared);
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    shared[i] = 1;
  }
  __syncthreads();
  out[threadIdx.x] = shared[count - 1 - threadIdx.x];
}

__global__ void loads_misaligned(const float* in, float* out) {
  float values[4];
  load(in + 1, values);
  out[0] = values[0];
}

}  // namespace
}  // namespace fusewheel

int main(int, char** argv) {
  using namespace fusewheel;
  constexpr int kCount = 64;
  const std::unique_ptr<float[]> in(new float[kCount]());
  const std::unique_ptr<float[]> out(new float[kCount]());
  const auto is = [&](const char* name) { return std::strcmp(argv[1], name) == 0; };
  try {
    if (is("reads_beyond_end")) {
      launch(argv[1], reads_beyond_end, 2, kCount, 0, nullptr, in.get(), out.get(), kCount);
    } else if (is("writes_beyond_shared")) {
      launch(argv[1], writes_beyond_shared, 1, kCount, kCount * sizeof(float), nullptr, out.get(),
             kCount);
    } else if (is("leaves_before_barrier")) {
      launch(argv[1], leaves_before_barrier, 1, kCount, 0, nullptr, out.get());
    } else if (is("leaves_before_shuffle")) {
      launch(argv[1], leaves_before_shuffle, 1, kCount, 0, nullptr, out.get());
    } else if (is("fills_shared") || is("fills_unasked_shared")) {
      const int bytes = std::atoi(argv[2]);
      const int floats = bytes / static_cast<int>(sizeof(float));
      if (is("fills_shared")) {
        launch(argv[1], fills_shared, 1, kCount, bytes, nullptr, out.get(), floats);
      } else {
        const auto* kernel = reinterpret_cast<const void*>(fills_shared);
        check(argv[1], emulation::launch(argv[1], kernel, 1, kCount, bytes,
                                         [&] { fills_shared(out.get(), floats); }));
      }
      for (int i = 0; i < kCount; ++i) {
        if (out[i] != 1) {
          return 2;
        }
      }
    } else if (is("loads_misaligned")) {
      launch(argv[1], loads_misaligned, 1, 1, 0, nullptr, in.get(), out.get());
    }
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
