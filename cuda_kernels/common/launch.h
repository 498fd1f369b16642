// Launches a kernel; an error becomes an exception that names the operator.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

#include "device.h"

namespace fusewheel {

constexpr int kWarp = 32;

// How many blocks a multiprocessor should run at a time. In double precision it is said: the compiler
// would count on more registers than there are. 0 leaves it to the compiler.
template <typename T, int in_double>
constexpr int kBlocksInDouble = sizeof(T) == sizeof(double) ? in_double : 0;

// Enough blocks for `items` threads of work; kernels loop where there are more than a grid holds.
inline unsigned blocks_for(int64_t items, int64_t per_block) {
  int64_t most = 1 << 20;
#if FUSEWHEEL_EMULATED
  most = emulation::most_blocks(most);
#endif
  const int64_t blocks = (items + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

inline void check(const char* op, cudaError_t error) {
  if (error != cudaSuccess) {
    cudaGetLastError();  // else the next call that asks would report it again
    throw std::runtime_error(std::string(op) + ": CUDA error " + std::to_string(error) + ": " +
                             cudaGetErrorString(error));
  }
}

// Every kernel may use this much dynamic shared memory: CUDA grants 48 KB unasked, and what a
// kernel declares itself takes of them.
constexpr size_t kSharedUnasked = 40 * 1024;

// Dynamic shared memory that a block of the kernel can have on this GPU.
inline size_t most_shared(const char* op, const void* kernel) {
  cudaFuncAttributes has{};
  check(op, cudaFuncGetAttributes(&has, kernel));
  int device = 0;
  int most = 0;
  check(op, cudaGetDevice(&device));
  check(op, cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return static_cast<size_t>(most) - has.sharedSizeBytes;
}

inline void ask_for_shared(const char* op, const void* kernel, size_t bytes) {
  cudaFuncAttributes has{};
  check(op, cudaFuncGetAttributes(&has, kernel));
  if (bytes <= static_cast<size_t>(has.maxDynamicSharedSizeBytes)) {
    return;
  }
  const size_t most = most_shared(op, kernel);
  if (bytes > most) {
    throw std::runtime_error(std::string(op) + ": a block of the kernel needs " +
                             std::to_string(bytes + has.sharedSizeBytes) +
                             " bytes of shared memory, this GPU has " +
                             std::to_string(most + has.sharedSizeBytes));
  }
  check(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(bytes)));
}

// Drivers before CUDA 12.1 pass no more to a kernel.
constexpr size_t kParameterBytes = 4096;

template <typename... Parameters>
constexpr size_t bytes_of() {
  size_t bytes = 0;
  ((bytes = (bytes + alignof(Parameters) - 1) / alignof(Parameters) * alignof(Parameters) +
            sizeof(Parameters)),
   ...);
  return bytes;
}

template <typename... Parameters>
void launch(const char* op, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
            Stream stream, const std::common_type_t<Parameters>&... arguments) {
  static_assert(bytes_of<Parameters...>() <= kParameterBytes, "a kernel has too many parameters");
  // No rows, nothing to do; CUDA would call it an invalid configuration.
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const auto* address = reinterpret_cast<const void*>(kernel);
  if (shared > kSharedUnasked) {
    ask_for_shared(op, address, shared);
  }
#if FUSEWHEEL_EMULATED
  (void)stream;
  // By reference: what the function holds stays on this thread's stack (see emulation/spaces.h).
  const auto body = [&] { kernel(arguments...); };
  check(op, emulation::launch(op, address, grid, block, shared, std::cref(body)));
#else
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  check(op, cudaLaunchKernel(address, grid, block, pointers, shared, stream));
#endif
}

// Calls body(T{}) with the element type that a dtype stands for.
template <typename Body>
void for_dtype(Dtype dtype, const Body& body) {
  switch (dtype) {
    case Dtype::kFloat32: return body(float{});
    case Dtype::kBFloat16: return body(__nv_bfloat16{});
    case Dtype::kFloat16: return body(__half{});
    case Dtype::kFloat64: return body(double{});
  }
}

}  // namespace fusewheel
