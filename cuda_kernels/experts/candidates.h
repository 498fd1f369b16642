// The experts that a token's lanes choose from.
#pragma once

#include "common/reduce.h"

#define FUSEWHEEL_CHOOSER __device__ inline
#include <fusewheel/experts/choose.h>

namespace fusewheel {
namespace {

// One of several that are ordered by value; none if the index is negative.
template <typename A>
struct Candidate {
  A value;
  int index;

  __device__ bool exists() const { return index >= 0; }
  __device__ bool is_before(const Candidate& other) const {
    return exists() && (!other.exists() || comes_before(value, index, other.value, other.index));
  }
  // Whether it comes next of all that were looked at since: behind `last` and before `best`.
  __device__ bool is_next(const Candidate& last, const Candidate& best) const {
    return (!last.exists() || last.is_before(*this)) && is_before(best);
  }
};

// The first one of a token's lanes.
template <typename A>
__device__ Candidate<A> first_of_lanes(Candidate<A> own) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    if (distance < static_cast<int>(blockDim.x)) {
      const Candidate<A> other{__shfl_xor_sync(0xffffffffu, own.value, distance),
                               __shfl_xor_sync(0xffffffffu, own.index, distance)};
      own = other.is_before(own) ? other : own;
    }
  }
  return own;
}

// A lane's experts: its e-th stands at values[e * step], whose index among all is index(e).
template <typename A, int V>
struct OwnExperts {
  A* scores;
  A* choice;
  int step;
  int experts;

  __device__ int index(int e) const {
    return ((e / V) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * V + e % V;
  }
  __device__ int place(int index) const {
    return index / (V * static_cast<int>(blockDim.x)) * V + index % V;
  }
  __device__ bool owns(int index) const {
    return index / V % static_cast<int>(blockDim.x) == static_cast<int>(threadIdx.x);
  }

  // Calls body(e, index).
  template <typename Body>
  __device__ void each(const Body& body) const {
    for (int e = 0; index(e) < experts; ++e) {
      body(e, index(e));
    }
  }

  __device__ Candidate<A> next(int begin, int end, Candidate<A> last) const {
    return first_of(choice, begin, end, last);
  }
  // Likewise by what groups are chosen by.
  __device__ Candidate<A> next_of_group(bool has_bias, int begin, int end, Candidate<A> last) const {
    return first_of(has_bias ? choice : scores, begin, end, last);
  }

  // Experts of the groups behind `last` are not chosen any more.
  __device__ void leave_groups(const A* of_groups, int size, Candidate<A> last) {
    each([&](int e, int i) {
      if (last.is_before({of_groups[i / size], i / size})) {
        choice[e * step] = -static_cast<A>(__builtin_inff());
      }
    });
  }

  // Every lane of the token gets it.
  __device__ A score_of(int index) const {
    const int lanes = static_cast<int>(blockDim.x);
    const int first_lane = static_cast<int>(threadIdx.y) * lanes % kWarp;
    const A own = owns(index) ? scores[place(index) * step] : A{};
    return __shfl_sync(0xffffffffu, own, first_lane + index / V % lanes);
  }

 private:
  // The token's first of the experts [begin, end) that come behind `last`.
  __device__ Candidate<A> first_of(const A* values, int begin, int end, Candidate<A> last) const {
    Candidate<A> best{0, -1};
    each([&](int e, int i) {
      const Candidate<A> own{values[e * step], i};
      if (i >= begin && i < end && own.is_next(last, best)) {
        best = own;
      }
    });
    return first_of_lanes(best);
  }
};

}  // namespace
}  // namespace fusewheel
