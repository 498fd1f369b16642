// A token's experts that are too many for shared memory. What experts are chosen by is computed from
// the logits whenever it is needed: caches hold a token's logits, and nothing else is kept of them.
#pragma once

#include <fusewheel/experts/route_args.h>

#include "candidates.h"
#include "common/vector.h"

namespace fusewheel {
namespace {

// By all lanes of a warp. One kernel for all dtypes that are computed in A, which looks for the dtype when it
// runs: few mixtures have so many experts.
template <typename A>
class ManyExperts {
 public:
  int experts;

  // A lane has `together` neighbouring experts at a time: one, or a vector of logits.
  __device__ ManyExperts(const RouteArgs& args, int64_t token, int together)
      : experts(static_cast<int>(args.experts)),
        logits_(args.logits),
        dtype_(args.dtype),
        first_(token * args.stride),
        together_(together),
        bias_(static_cast<const A*>(args.bias)),
        sigmoid_(args.sigmoid) {
    if (!sigmoid_) {
      each([&](int, A z) { peak_ = Larger()(peak_, z); });
      peak_ = warp_reduce<Larger>(peak_);
      A total = 0;
      each([&](int, A z) { total += exponential(z - peak_); });
      total_ = warp_reduce<Plus>(total);
    }
  }

  __device__ bool owns(int) const { return threadIdx.x == 0; }
  __device__ A score_of(int index) const {
    return score(load_one<A>(logits_, dtype_, first_ + index));
  }

  __device__ Candidate<A> next(int begin, int end, Candidate<A> last) const {
    return first_of(begin, end, last, [&](int i, A z) {
      const bool is_left = last_group_.exists() &&
                           last_group_.is_before({of_groups_[i / group_size_], i / group_size_});
      return is_left ? -static_cast<A>(__builtin_inff()) : bias_ == nullptr ? z : biased(i, z);
    });
  }
  __device__ Candidate<A> next_of_group(bool has_bias, int begin, int end, Candidate<A> last) const {
    return first_of(begin, end, last,
                    [&](int i, A z) { return has_bias ? biased(i, z) : score(z); });
  }
  __device__ void leave_groups(const A* of_groups, int size, Candidate<A> last) {
    of_groups_ = of_groups;
    group_size_ = size;
    last_group_ = last;
  }

 private:
  // Numbers of a vector, at most.
  static constexpr int kMost = sizeof(A) == sizeof(float) ? kLanes<__half> : 1;

  // Calls body(index, logit).
  template <typename Body>
  __device__ void each(const Body& body) const {
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x) * together_; at < experts;
         at += kWarp * together_) {
      A z[kMost] = {};
      read(first_ + at, z);
#pragma unroll 1
      for (int k = 0; k < together_; ++k) {
        body(at + k, z[0]);
        turn(z);
      }
    }
  }

  __device__ void read(int64_t at, A (&z)[kMost]) const {
    if constexpr (sizeof(A) == sizeof(float)) {
      if (together_ == kMost) {
        if (dtype_ == Dtype::kBFloat16) {
          load(static_cast<const __nv_bfloat16*>(logits_) + at, z);
        } else {
          load(static_cast<const __half*>(logits_) + at, z);
        }
        return;
      }
      if (together_ > 1) {
        float own[kLanes<float>];
        load(static_cast<const float*>(logits_) + at, own);
#pragma unroll
        for (int k = 0; k < kLanes<float>; ++k) {
          z[k] = own[k];
        }
        return;
      }
    }
    z[0] = load_one<A>(logits_, dtype_, at);
  }

  __device__ A score(A z) const {
    return sigmoid_ ? sigmoid(z) : exponential(z - peak_) / total_;
  }
  __device__ A biased(int i, A z) const { return score(z) + bias_[i]; }

  template <typename Value>
  __device__ Candidate<A> first_of(int begin, int end, Candidate<A> last, const Value& value) const {
    Candidate<A> best{0, -1};
    each([&](int i, A z) {
      if (i >= begin && i < end) {
        const Candidate<A> own{value(i, z), i};
        best = own.is_next(last, best) ? own : best;
      }
    });
    return first_of_lanes(best);
  }

  const void* logits_;
  Dtype dtype_;
  int64_t first_;  // of the token
  int together_;
  const A* bias_;
  bool sigmoid_;
  A peak_ = -static_cast<A>(__builtin_inff());
  A total_ = 1;
  const A* of_groups_ = nullptr;
  int group_size_ = 1;
  Candidate<A> last_group_{0, -1};
};

}  // namespace
}  // namespace fusewheel
