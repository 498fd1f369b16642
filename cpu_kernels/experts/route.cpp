// Scores of a token's experts, softmax or sigmoid of their logits; how experts are chosen by them is in
// fusewheel/experts/choose.h

#include <fusewheel/experts/route_args.h>

#include "parallel.h"
#include "simd/math.h"
#include "simd/rows.h"

#define FUSEWHEEL_CHOOSER FUSEWHEEL_INLINE
#include <fusewheel/experts/choose.h>

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

template <typename A>
FUSEWHEEL_INLINE void softmax(A* scores, int64_t count) {
  A peak = scores[0];
  for (int64_t i = 1; i < count; ++i) {
    peak = scores[i] > peak ? scores[i] : peak;
  }
  A total = 0;
  for_each_vector<A>(count, [&](int64_t i, int64_t live) {
    store(scores + i, exp(load(scores + i, live) - peak), live);
  });
  for (int64_t i = 0; i < count; ++i) {
    total += scores[i];
  }
  for_each_vector<A>(count, [&](int64_t i, int64_t live) {
    store(scores + i, load(scores + i, live) / total, live);
  });
}

template <typename T>
void row(const RouteArgs& args, int64_t token) {
  using A = Accumulate<T>;
  const auto* logits = static_cast<const T*>(args.logits) + token * args.stride;
  A* scores = static_cast<A*>(args.scores) + token * args.experts;
  A* choice = static_cast<A*>(args.choice) + token * args.experts;
  const auto* bias = static_cast<const A*>(args.bias);
  const int64_t count = args.experts;
  for_each_vector<A>(count, [&](int64_t i, int64_t live) {
    const auto z = load(logits + i, live);
    store(choice + i, z, live);  // orders like the scores, and has no ties by rounding
    store(scores + i, args.sigmoid ? 1 / (1 + exp(-z)) : z, live);
  });
  if (!args.sigmoid) {
    softmax<A>(scores, count);
  }
  if (bias != nullptr) {
    for_each_vector<A>(count, [&](int64_t i, int64_t live) {
      store(choice + i, load(scores + i, live) + load(bias + i, live), live);
    });
  }
  choose_experts<A>(args, token);
}

}  // namespace

void route_rows(const RouteArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    for (int64_t token = begin; token < end; ++token) {
      row<decltype(zero)>(args, token);
    }
  });
}

void route_launch(const RouteArgs& args) {
  parallel_rows(route_rows, args, args.tokens, args.experts * args.k);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(route_launch, RouteArgs);
