// Which experts a token goes to, by softmax or sigmoid of its logits, and their weights. In which order
// experts come is in fusewheel/experts/choose.h.
//
// A token has up to 32 lanes of a warp. Each lane has V neighbouring experts of every V * lanes: it
// looks for its best one, and the best of the lanes' is the token's next. All that is kept of a token
// lies in shared memory; with too many experts for it, nothing is (see many_experts.h).

#include <fusewheel/experts/route_args.h>

#include "candidates.h"
#include "common/rows.h"
#include "many_experts.h"

namespace fusewheel {
namespace {

constexpr int kRouteThreads = 256;
constexpr int kManyThreads = 2 * kWarp;
constexpr int kManyBlocks = 16;  // else the compiler keeps registers for more, and has too few
template <typename T>
constexpr int kRouteBlocks = kBlocksInDouble<T, 2>;

// Reads the logits, and makes of them the scores and what experts are chosen by.
template <typename T, int V>
__device__ void score(const RouteArgs& args, const T* logits,
                      const OwnExperts<Accumulate<T>, V>& own) {
  using A = Accumulate<T>;
  A peak = -static_cast<A>(__builtin_inff());
  for (int e = 0; own.index(e) < own.experts; e += V) {
    A z[V];
    load(logits + own.index(e), z);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      own.choice[(e + k) * own.step] = z[k];  // orders like the scores, and has no ties by rounding
      peak = Larger()(peak, z[k]);
    }
  }
  peak = warp_reduce<Larger>(peak, blockDim.x);
  A total = 0;
  own.each([&](int e, int) {
    const A z = own.choice[e * own.step];
    const A value = args.sigmoid ? sigmoid(z) : exponential(z - peak);
    own.scores[e * own.step] = value;
    total += value;
  });
  total = args.sigmoid ? 1 : warp_reduce<Plus>(total, blockDim.x);
  own.each([&](int e, int i) {
    const A value = own.scores[e * own.step] / total;
    own.scores[e * own.step] = value;
    if (args.bias != nullptr) {
      own.choice[e * own.step] = value + static_cast<const A*>(args.bias)[i];
    }
  });
}

// Experts of groups that are not chosen get -inf in `choice`. Groups are chosen by the sum of the
// largest of their scores, or of what experts are chosen by if there is a bias.
template <typename A, typename Experts>
__device__ void choose_groups(const RouteArgs& args, Experts& own, A* of_groups) {
  const int groups = static_cast<int>(args.groups);
  const int size = own.experts / groups;
  for (int g = 0; g < groups; ++g) {
    A sum = 0;
    Candidate<A> last{0, -1};
    for (int64_t n = 0; n < args.group_best; ++n) {
      last = own.next_of_group(args.bias != nullptr, g * size, (g + 1) * size, last);
      sum += last.value;
    }
    if (threadIdx.x == 0) {
      of_groups[g] = sum;
    }
  }
  __syncwarp();
  Candidate<A> last{0, -1};
  for (int64_t n = 0; n < args.chosen_groups; ++n) {
    Candidate<A> best{0, -1};
    for (int g = threadIdx.x; g < groups; g += blockDim.x) {
      const Candidate<A> group{of_groups[g], g};
      best = group.is_next(last, best) ? group : best;
    }
    last = first_of_lanes(best);
  }
  own.leave_groups(of_groups, size, last);
}

// The experts of a token and their weights.
template <typename A, typename Experts>
__device__ void choose(const RouteArgs& args, const Experts& own, A* weights, int64_t* indices) {
  A sum = 0;
  Candidate<A> last{0, -1};
  for (int64_t n = 0; n < args.k; ++n) {
    last = own.next(0, own.experts, last);
    const A score = own.score_of(last.index);
    sum += score;
    if (own.owns(last.index)) {
      weights[n] = score;
      indices[n] = last.index;
    }
  }
  const A divisor = args.normalize ? sum + static_cast<A>(1e-20) : A{1};
  __syncwarp();
  for (int64_t n = threadIdx.x; n < args.k; n += blockDim.x) {
    weights[n] = weights[n] / divisor * static_cast<A>(args.scale);
  }
}

// By all threads of a block.
template <typename P>
__device__ void copy_out(const P* from, P* to, int64_t count) {
  constexpr int kTogether = kVectorBytes / sizeof(P);
  const int threads = blockDim.x * blockDim.y;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  const bool aligned = reinterpret_cast<uintptr_t>(to) % kVectorBytes == 0;
  const int64_t vectors = aligned ? count / kTogether : 0;
  for (int64_t i = thread; i < vectors; i += threads) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  for (int64_t i = vectors * kTogether + thread; i < count; i += threads) {
    to[i] = from[i];
  }
}

// Shared memory of a block: the chosen experts, their weights, sums of groups, and two numbers for each
// expert. Vectors begin where 128 bits do.
template <typename A>
struct RouteMemory {
  size_t indices, weights, groups, all;

  __host__ __device__ RouteMemory(const RouteArgs& args, int tokens, int experts_of_lanes) {
    const auto vectors = [](size_t bytes) {
      return (bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
    };
    indices = vectors(tokens * args.k * sizeof(int64_t));
    weights = indices + vectors(tokens * args.k * sizeof(A));
    groups = weights + (args.groups > 1 ? vectors(tokens * args.groups * sizeof(A)) : 0);
    all = groups + 2 * sizeof(A) * experts_of_lanes;
  }
};

// How many experts the lanes of `tokens` tokens keep; some of the last ones may not exist.
template <int V>
__host__ __device__ int experts_of_lanes(int64_t experts, int lanes, int tokens) {
  const int64_t run = V * static_cast<int64_t>(lanes);
  return static_cast<int>((experts + run - 1) / run * run * tokens);
}

template <typename T, int V>
__global__ void __launch_bounds__(kRouteThreads, kRouteBlocks<T>)
    route_tokens(const __grid_constant__ RouteArgs args) {
  using A = Accumulate<T>;
  FUSEWHEEL_DYNAMIC_SHARED(unsigned char, memory);
  const int tokens = blockDim.y;
  const int threads = tokens * blockDim.x;
  const int experts = static_cast<int>(args.experts);
  const int kept = experts_of_lanes<V>(experts, blockDim.x, tokens);
  const RouteMemory<A> at(args, tokens, kept);
  auto* indices = reinterpret_cast<int64_t*>(memory);
  A* weights = reinterpret_cast<A*>(memory + at.indices);
  A* of_groups = reinterpret_cast<A*>(memory + at.weights);
  // A lane's numbers stand as far apart as the block has threads: no two lanes meet in a bank.
  A* scores = reinterpret_cast<A*>(memory + at.groups) + threadIdx.y * blockDim.x + threadIdx.x;
  OwnExperts<A, V> own{scores, scores + kept, threads, experts};
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * tokens; first < args.tokens;
       first += static_cast<int64_t>(gridDim.x) * tokens) {
    const int64_t left = args.tokens - first < tokens ? args.tokens - first : tokens;
    // Lanes without a token do the last one's work again: a warp's lanes meet in shuffles.
    const int64_t token = first + (threadIdx.y < left ? threadIdx.y : left - 1);
    score(args, static_cast<const T*>(args.logits) + token * args.stride, own);
    if (args.groups > 1) {
      choose_groups(args, own, of_groups + threadIdx.y * args.groups);
    }
    choose(args, own, weights + threadIdx.y * args.k, indices + threadIdx.y * args.k);
    __syncthreads();
    copy_out(weights, static_cast<A*>(args.weights) + first * args.k, left * args.k);
    copy_out(indices, args.indices + first * args.k, left * args.k);
    __syncthreads();
  }
}

// A warp has a token.
template <typename A>
__global__ void __launch_bounds__(kManyThreads, kManyBlocks)
    route_many_experts(const __grid_constant__ RouteArgs args, int together) {
  for (int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
       token < args.tokens; token += static_cast<int64_t>(gridDim.x) * blockDim.y) {
    ManyExperts<A> own(args, token, together);
    if (args.groups > 1) {
      choose_groups(args, own, static_cast<A*>(args.of_groups) + token * args.groups);
    }
    choose(args, own, static_cast<A*>(args.weights) + token * args.k,
           args.indices + token * args.k);
  }
}

template <typename T, int V>
void route_launch(const RouteArgs& args, Stream stream) {
  using A = Accumulate<T>;
  unsigned lanes = 1;
  while (lanes < kWarp && lanes * V < args.experts) {
    lanes *= 2;
  }
  const auto needed = [&](unsigned tokens) {
    const int kept = experts_of_lanes<V>(args.experts, lanes, tokens);
    return RouteMemory<A>(args, tokens, kept).all;
  };
  unsigned tokens = kRouteThreads / lanes;
  while (tokens * lanes > kWarp && needed(tokens) > kSharedUnasked) {
    tokens /= 2;
  }
  if (needed(tokens) > kSharedUnasked) {
    constexpr int kTokens = kManyThreads / kWarp;
    launch("route", route_many_experts<A>, blocks_for(args.tokens, kTokens),
           dim3(kWarp, kTokens), 0, stream, args, V);
  } else {
    launch("route", route_tokens<T, V>, blocks_for(args.tokens, tokens), dim3(lanes, tokens),
           needed(tokens), stream, args);
  }
}

}  // namespace

void route_launch(const RouteArgs& args, Stream stream) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors = has_vectors(args.logits, args.stride, kLanes<T>) &&
                         args.experts % kLanes<T> == 0;
    for_width<T>(vectors, [&](auto lanes) {
      route_launch<T, decltype(lanes)::value>(args, stream);
    });
  });
}

}  // namespace fusewheel
