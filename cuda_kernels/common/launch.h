// Launches a kernel; an error becomes an exception that names the operator.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

#include "device.h"

namespace fusewheel {

constexpr int kWarp = 32;

// Enough blocks for `items` threads of work; kernels loop where there are more than a grid holds.
inline unsigned blocks_for(int64_t items, int64_t per_block) {
  constexpr int64_t kMost = 1 << 20;
  const int64_t blocks = (items + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

template <typename... Parameters>
void launch(const char* op, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
            Stream stream, const std::common_type_t<Parameters>&... arguments) {
  // No rows, nothing to do; CUDA would call it an invalid configuration.
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#if FUSEWHEEL_EMULATED
  (void)stream;
  emulation::launch(op, grid, block, shared, [&] { kernel(arguments...); });
#else
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  const cudaError_t error = cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block,
                                             pointers, shared, stream);
  if (error != cudaSuccess) {
    cudaGetLastError();  // else the next call that asks would report it again
    throw std::runtime_error(std::string(op) + ": CUDA error " + std::to_string(error) + ": " +
                             cudaGetErrorString(error));
  }
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
