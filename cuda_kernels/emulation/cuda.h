// CUDA as far as our kernels use it, for g++: they then run on a CPU, through the same launches and
// the same operators, where no GPU is at hand.
//
// What it finds: wrong results, reads and writes out of bounds (under AddressSanitizer), misaligned
// vector accesses, a barrier or shuffle that not all threads reach, shared memory that a kernel has
// not asked for, and a missing barrier if some order of the threads shows it: each thread runs until
// it has to wait, in an order drawn from FUSEWHEEL_EMULATION_SEED (0 by default). If somebody
// watches (watch.h), also every race, every read of shared memory that nobody has written, and what
// each instruction moves.
//
// What it cannot find: threads do not run at the same time, warps are not in lockstep, memory is
// always coherent and launches are over when they return. So missing synchronisation of streams, too
// many registers, failed launches and how long anything takes stay unseen. There are no atomics, and
// no kernel may use any: blocks run one after another. Tensor cores and asynchronous copies are in
// tensor.h: a read before the wait for a copy gets NaN.
#pragma once

#include "fibers.h"
#include "half.h"
#include "runtime.h"

#include <cmath>

#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
// Blocks run one after another, so the memory of one serves all.
#define __shared__ static

#define threadIdx (::fusewheel::emulation::block.running->index)
#define blockIdx (::fusewheel::emulation::block.block_index)
#define blockDim (::fusewheel::emulation::block.block_size)
#define gridDim (::fusewheel::emulation::block.grid_size)

#define FUSEWHEEL_EXPECT_ALIGNED(address, bytes)                                \
  do {                                                                          \
    if (reinterpret_cast<uintptr_t>(address) % (bytes) != 0) {                  \
      ::fusewheel::emulation::block.fail("misaligned access by whole vectors"); \
    }                                                                           \
  } while (false)

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

// Out of line, or the compiler would read those words alone that are needed.
inline __attribute__((noipa)) uint4 __ldg(const uint4* from) { return *from; }

inline float __uint_as_float(unsigned bits) { return ::fusewheel::emulation::as_float(bits); }
inline unsigned __float_as_uint(float value) { return ::fusewheel::emulation::as_bits(value); }

inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}

inline void __syncthreads() { ::fusewheel::emulation::block.wait_for_block(); }

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  ::fusewheel::emulation::block.exchange(mask, 0, 0, true);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = ::fusewheel::emulation::block.exchange(mask, bits, static_cast<unsigned>(lane) % 32);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return __shfl_sync(mask, value, ::fusewheel::emulation::block.lane() ^ distance);
}

// A lane beyond the warp's end gets its own value.
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
  const unsigned own = ::fusewheel::emulation::block.lane();
  const unsigned from = own + distance;
  return __shfl_sync(mask, value, static_cast<int>(from < 32 ? from : own));
}

// A lane before the warp's first gets its own value.
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
  const unsigned own = ::fusewheel::emulation::block.lane();
  return __shfl_sync(mask, value, static_cast<int>(own >= distance ? own - distance : own));
}
