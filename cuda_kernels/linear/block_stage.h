// Weights in stored blocks, brought into shared memory as they are stored, and decoded from there.
//
// A block begins at any byte and is read byte by byte. From global memory each byte of a warp's blocks
// would cost a sector of 32; here neighbouring lanes read neighbouring pieces of 16 bytes.
#pragma once

#include <fusewheel/linear/linear_args.h>

#include "common/launch.h"
#include "common/vector.h"

#define FUSEWHEEL_DECODER __device__ inline
#include <fusewheel/linear/block_decode.h>

namespace fusewheel {
namespace {

// The bytes that may be read.
struct StoredBytes {
  const uint8_t* begin;
  const uint8_t* end;

  // 16 of them, at an aligned address; zero where they may not.
  __device__ uint4 bits(const uint8_t* from) const {
    if (from >= begin && end - from >= kVectorBytes) {
      FUSEWHEEL_EXPECT_ALIGNED(from, kVectorBytes);
      return *reinterpret_cast<const uint4*>(from);
    }
    // Only at the two ends of a weight: few instructions matter more than speed.
    uint64_t halves[2] = {};
#pragma unroll 1
    for (const uint8_t* last = from + kVectorBytes; from < last; ++from) {
      const uint64_t byte = from >= begin && from < end ? *from : 0;
      halves[0] = halves[0] >> 8 | halves[1] << 56;
      halves[1] = halves[1] >> 8 | byte << 56;
    }
    uint4 bits;
    memcpy(&bits, halves, sizeof(bits));
    return bits;
  }
};

// Neighbouring parts of a row, which a warp brings together: at most kRun of them.
template <typename Decoder>
struct BlockStage {
  static constexpr int kRun = 64;
  static constexpr int kParts = Decoder::kWeights / kBlockPart;  // of a block
  static constexpr int kBlocks = kRun / kParts + (kParts > 1);   // a run may begin within one
  // Of a kind with 8 bits a weight, the parts that a warp decodes together lie far from each other: side
  // by side they would be longer than all banks of shared memory.
  static constexpr bool kFarApart = Decoder::kBytes >= Decoder::kWeights;
  static constexpr int kVectors = (kBlocks * Decoder::kBytes + 2 * (kVectorBytes - 1)) / kVectorBytes;

  uint4 vectors[kVectors];

  // What a warp finds of its run after `fill`.
  struct Run {
    const uint8_t* blocks;
    int first;  // of the parts of the first block, the one that the run begins with
    int parts;

    // Calls body(i, weights) for N neighbouring weights of the run, from its weight `i` on, until this
    // lane has had its share. The lanes have N parts together.
    template <int N, typename Body>
    __device__ void for_own(const Body& body) const {
      constexpr int kSharing = kBlockPart / N;  // lanes of a part
      const int lane = threadIdx.x;
      const int own = lane / kSharing;
      const int i = lane % kSharing * N;
      const int steps = (parts + N - 1) / N;
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        const int part = kFarApart ? own * steps + step : step * N + own;
        if (part < parts) {
          const int at = first + part;
          float weights[N];
          Decoder::template decode_some<N>(blocks + at / kParts * Decoder::kBytes, at % kParts, i,
                                           weights);
          body(part * kBlockPart + i, weights);
        }
      }
    }
  };

  // The run of up to kRun parts from part `first` of the row that begins at `row`. All lanes must call it;
  // they have read what was here before.
  __device__ Run fill(const StoredBytes& stored, const uint8_t* row, int64_t first, int64_t left) {
    const int parts = left < kRun ? static_cast<int>(left) : kRun;
    constexpr int kReads = (kVectors + kWarp - 1) / kWarp;  // of a lane, under way together
    const int lane = threadIdx.x;
    const int own = static_cast<int>(first % kParts);
    const uint8_t* from = row + first / kParts * Decoder::kBytes;
    const int skew = static_cast<int>(reinterpret_cast<uintptr_t>(from) % kVectorBytes);
    const int bytes = (own + parts + kParts - 1) / kParts * Decoder::kBytes;
    const int count = (skew + bytes + kVectorBytes - 1) / kVectorBytes;
    uint4 bits[kReads];
#pragma unroll
    for (int i = 0; i < kReads; ++i) {
      const int vector = lane + i * kWarp;
      if (vector < count) {
        bits[i] = stored.bits(from - skew + vector * kVectorBytes);
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kReads; ++i) {
      const int vector = lane + i * kWarp;
      if (vector < count) {
        vectors[vector] = bits[i];
      }
    }
    __syncwarp();
    return {reinterpret_cast<const uint8_t*>(vectors) + skew, own, parts};
  }
};

}  // namespace
}  // namespace fusewheel
