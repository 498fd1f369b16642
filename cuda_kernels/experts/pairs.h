// Pairs of a token and one of its experts, sorted by expert; each block sorts for itself.
#pragma once

#include "experts.h"

namespace fusewheel {
namespace {

constexpr int kMostPairs = 256;  // that are sorted together
constexpr int kNoExpert = 0x7fffffff;

struct Pairs {
  int experts[kMostPairs];  // by pair; kNoExpert where the number is none of an expert
  int order[kMostPairs];    // the pairs by expert, those without one last

  __device__ int expert_at(int place) const { return experts[order[place]]; }

  // Where the pairs end that have the expert of this one.
  __device__ int end_of_run(int place, int count) const {
    int end = place + 1;
    while (end < count && expert_at(end) == expert_at(place)) {
      ++end;
    }
    return end;
  }
};

// Every thread of the block must call it; the pairs before have been read then.
__device__ inline void sort_pairs(Pairs& pairs, const ExpertChoice& choice, int64_t begin,
                                  int count) {
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  __syncthreads();
  for (int pair = thread; pair < count; pair += threads) {
    const int64_t expert = choice.is_long
                               ? static_cast<const int64_t*>(choice.indices)[begin + pair]
                               : static_cast<const int32_t*>(choice.indices)[begin + pair];
    pairs.experts[pair] =
        expert >= 0 && expert < choice.experts ? static_cast<int>(expert) : kNoExpert;
  }
  __syncthreads();
  for (int pair = thread; pair < count; pair += threads) {
    const int own = pairs.experts[pair];
    int place = 0;
    for (int other = 0; other < count; ++other) {
      const int expert = pairs.experts[other];
      place += expert < own || (expert == own && other < pair);
    }
    pairs.order[place] = pair;
  }
  __syncthreads();
}

}  // namespace
}  // namespace fusewheel
