// Scores of a token's experts, softmax or sigmoid of their logits; how experts are chosen by them is in
// fusewheel/experts/choose.h. A thread has a token.

#include <fusewheel/experts/route_args.h>

#include "common/launch.h"
#include "common/numbers.h"

#define FUSEWHEEL_CHOOSER __device__ inline
#include <fusewheel/experts/choose.h>

namespace fusewheel {
namespace {

constexpr int kRouteThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kRouteThreads)
    route_tokens(const __grid_constant__ RouteArgs args) {
  using A = Accumulate<T>;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kRouteThreads;
  for (int64_t token = static_cast<int64_t>(blockIdx.x) * kRouteThreads + threadIdx.x;
       token < args.tokens; token += threads) {
    const auto* logits = static_cast<const T*>(args.logits) + token * args.stride;
    A* scores = static_cast<A*>(args.scores) + token * args.experts;
    A* choice = static_cast<A*>(args.choice) + token * args.experts;
    A peak = widen(logits[0]);
    for (int64_t i = 0; i < args.experts; ++i) {
      const A z = widen(logits[i]);
      peak = z > peak ? z : peak;
    }
    A total = 0;
    for (int64_t i = 0; i < args.experts; ++i) {
      const A z = widen(logits[i]);
      choice[i] = z;  // orders like the scores, and has no ties by rounding
      scores[i] = args.sigmoid ? sigmoid(z) : exponential(z - peak);
      total += scores[i];
    }
    for (int64_t i = 0; i < args.experts; ++i) {
      scores[i] = args.sigmoid ? scores[i] : scores[i] / total;
      if (args.bias != nullptr) {
        choice[i] = scores[i] + static_cast<const A*>(args.bias)[i];
      }
    }
    choose_experts<A>(args, token);
  }
}

}  // namespace

void route_launch(const RouteArgs& args, Stream stream) {
  for_dtype(args.dtype, [&](auto zero) {
    launch("route", route_tokens<decltype(zero)>, blocks_for(args.tokens, kRouteThreads),
           kRouteThreads, 0, stream, args);
  });
}

}  // namespace fusewheel
