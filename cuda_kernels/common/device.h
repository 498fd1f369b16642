// What kernels and their launchers are written in: CUDA's own headers under nvcc, ours under g++
// (FUSEWHEEL_EMULATED), where the same kernels run without a GPU.
#pragma once

#include <fusewheel/geometry.h>

#if FUSEWHEEL_EMULATED

#include "emulation/cuda.h"

#define FUSEWHEEL_DYNAMIC_SHARED(T, name) T* name = emulation::dynamic_shared<T>()

#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

// One name for all types: the same array cannot be declared with two.
#define FUSEWHEEL_DYNAMIC_SHARED(T, name)                                   \
  extern __shared__ __align__(16) unsigned char fusewheel_dynamic_shared[]; \
  T* name = reinterpret_cast<T*>(fusewheel_dynamic_shared)
#define FUSEWHEEL_EXPECT_ALIGNED(address, bytes)  // a misaligned access is an error by itself

#endif
