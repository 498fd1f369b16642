// What launches ask CUDA's runtime, answered for a GPU with the least shared memory that a release
// serves. A kernel gets no more dynamic shared memory than it has asked for.
#pragma once

#include "fibers.h"

#include <map>

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin };

struct cudaFuncAttributes {
  size_t sharedSizeBytes;  // static
  int maxDynamicSharedSizeBytes;
  int ptxVersion;
};

namespace fusewheel::emulation {

constexpr int kSharedUnasked = 48 * 1024;
// A block's: FUSEWHEEL_EMULATION_SHARED bytes; without it the least there is, compute capability 7.5.
inline int shared_most() {
  const char* bytes = std::getenv("FUSEWHEEL_EMULATION_SHARED");
  return bytes == nullptr ? 64 * 1024 : std::atoi(bytes);
}
// Of a grid: FUSEWHEEL_EMULATION_BLOCKS, so that blocks have more than one task each in small calls too.
inline int64_t most_blocks(int64_t otherwise) {
  const char* blocks = std::getenv("FUSEWHEEL_EMULATION_BLOCKS");
  return blocks == nullptr ? otherwise : std::atoll(blocks);
}
// What a kernel declares itself takes room too. Its size is not known here: it is taken to be this.
constexpr int kSharedStatic = 1024;
// What the kernels are taken to be compiled for: the oldest GPU with all that is emulated.
constexpr int kCodeVersion = 80;

// How much dynamic shared memory each kernel may have.
class SharedMemory {
 public:
  int granted(const void* kernel) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return granted_.try_emplace(kernel, kSharedUnasked - kSharedStatic).first->second;
  }

  void grant(const void* kernel, int bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    granted_[kernel] = bytes;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, int> granted_;
};

inline SharedMemory shared_memory;

inline cudaError_t launch(const char* name, const void* kernel, dim3 grid, dim3 size, size_t shared,
                          std::function<void()> body) {
  if (shared > static_cast<size_t>(shared_memory.granted(kernel))) {
    return cudaErrorInvalidValue;
  }
  block.run(name, kernel, grid, size, shared, std::move(body));
  return cudaSuccess;
}

}  // namespace fusewheel::emulation

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid argument";
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = fusewheel::emulation::shared_most();
  return cudaSuccess;
}

inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  *attributes = {fusewheel::emulation::kSharedStatic,
                 fusewheel::emulation::shared_memory.granted(kernel),
                 fusewheel::emulation::kCodeVersion};
  return cudaSuccess;
}

inline cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int bytes) {
  if (bytes > fusewheel::emulation::shared_most() - fusewheel::emulation::kSharedStatic) {
    return cudaErrorInvalidValue;
  }
  fusewheel::emulation::shared_memory.grant(kernel, bytes);
  return cudaSuccess;
}
