// Cross entropy of a row's logits and its class; the formulas are in
// fusewheel/loss/cross_entropy_args.h

#include <fusewheel/loss/cross_entropy_args.h>

#include "parallel.h"
#include "simd/math.h"
#include "simd/prefetch.h"
#include "simd/rows.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

FUSEWHEEL_INLINE float logarithm(float x) { return __builtin_logf(x); }
FUSEWHEEL_INLINE double logarithm(double x) { return __builtin_log(x); }

template <typename A>
constexpr A kLowest = sizeof(A) == sizeof(float) ? -__FLT_MAX__ : -__DBL_MAX__;

template <typename A>
FUSEWHEEL_INLINE Vec<A> larger(Vec<A> a, Vec<A> b) {
  return a > b ? a : b;
}

// `value` in the first `live` lanes, `rest` in the others.
template <typename A>
FUSEWHEEL_INLINE Vec<A> first_lanes(Vec<A> value, int64_t live, A rest) {
  if (live == kLanes<A>) {
    return value;
  }
  for (int64_t lane = live; lane < kLanes<A>; ++lane) {
    value[lane] = rest;
  }
  return value;
}

// The sum of exp(z - peak) for a peak that grows as z comes in, a block of vectors at a time; every
// lane has its own. exp is never given anything positive.
template <typename A>
struct ExpSum {
  static constexpr int kBlock = 8;

  Vec<A> peak = splat(kLowest<A>);  // not -inf, from which nothing can be subtracted
  Vec<A> sum = {};

  template <int count>
  FUSEWHEEL_INLINE void add(const Vec<A>* z) {
    Vec<A> top[count];
    for (int k = 0; k < count; ++k) {
      top[k] = z[k];
    }
    for (int width = count / 2; width > 0; width /= 2) {
      for (int k = 0; k < width; ++k) {
        top[k] = larger<A>(top[k], top[k + width]);
      }
    }
    const auto higher = larger<A>(top[0], peak);
    sum *= exp_summand(peak - higher);
    peak = higher;
    for (int k = 0; k < count; ++k) {
      sum += exp_summand(z[k] - peak);
    }
  }

  // One peak for all lanes; the sum to it.
  FUSEWHEEL_INLINE A merge(A& to) {
    to = peak[0];
    for (int lane = 1; lane < kLanes<A>; ++lane) {
      to = peak[lane] > to ? peak[lane] : to;
    }
    return fusewheel::FUSEWHEEL_ISA::sum<A>(sum * exp(peak - to));
  }
};

// Logits are asked for so many bytes ahead: a block has so many instructions that the processor does not
// look beyond it by itself.
constexpr int64_t kAhead = 1024;

// A logit as the loss sees it.
template <typename A, bool capped>
FUSEWHEEL_INLINE Vec<A> cap(Vec<A> x, A softcap) {
  return capped ? softcap * tanh(x / softcap) : x;
}

template <typename T, bool capped, bool smoothed>
FUSEWHEEL_INLINE void row(const CrossEntropyArgs& args, int64_t n, Accumulate<T> weight_sum) {
  using A = Accumulate<T>;
  constexpr int lanes = kLanes<A>;
  constexpr int kBlock = ExpSum<A>::kBlock;
  const int64_t size = args.classes;
  const int64_t target = args.target[n];
  const auto* x = static_cast<const T*>(args.logits) + n * args.stride;
  const auto* weight = static_cast<const T*>(args.weight);
  const auto softcap = static_cast<A>(args.softcap);
  const auto class_share = static_cast<A>(args.class_share);
  const auto scalar = [](const T* from) { return load(from, 1)[0]; };

  ExpSum<A> total;
  const auto z_target = cap<A, capped>(splat(scalar(x + target)), softcap);
  // Differences to the target's logit, or to 0 where there are none: sums of large numbers would
  // cancel. So would lse - z.
  const A base = z_target[0] < kLowest<A> ? A{} : z_target[0];
  Vec<A> spread = {};  // of w * (z - base)
  const auto read = [&](int64_t i, int64_t live) {
    const auto z = cap<A, capped>(load(x + i, live), softcap);
    if constexpr (smoothed) {
      const auto above = first_lanes<A>(z - base, live, 0);
      spread += weight == nullptr ? above : above * load(weight + i, live);
    }
    return first_lanes<A>(z, live, -static_cast<A>(__builtin_inff()));
  };
  int64_t i = 0;
  for (; i + kBlock * lanes <= size; i += kBlock * lanes) {
    prefetch(x + i, kAhead, kBlock * lanes * static_cast<int64_t>(sizeof(T)));
    Vec<A> z[kBlock];
    for (int k = 0; k < kBlock; ++k) {
      z[k] = read(i + k * lanes, lanes);
    }
    total.template add<kBlock>(z);
  }
  for_each_vector<A>(size - i, [&](int64_t j, int64_t live) {
    const auto z = read(i + j, live);
    total.template add<1>(&z);
  });

  A peak;
  const A exp_sum = total.merge(peak);
  const A log_sum = logarithm(exp_sum);
  const A lse = peak + log_sum;
  const A share = static_cast<A>(args.target_share) *
                  (weight == nullptr ? A{1} : scalar(weight + target));
  A loss = share * ((peak - z_target[0]) + log_sum);
  if constexpr (smoothed) {
    loss += class_share * (weight_sum * ((peak - base) + log_sum) - sum<A>(spread));
  }
  const auto z_loss = static_cast<A>(args.z_loss);
  if (z_loss != 0) {
    loss += z_loss * lse * lse;
  }
  static_cast<A*>(args.loss)[n] = loss;
  static_cast<A*>(args.logsumexp)[n] = lse;
  if (args.grad == nullptr) {
    return;
  }

  auto* grad = static_cast<T*>(args.grad) + n * size;
  const A scale = args.row_grad == nullptr ? A{1} : static_cast<const A*>(args.row_grad)[n];
  const A pull = share + (smoothed ? class_share * weight_sum : A{}) + 2 * z_loss * lse;
  const A factor = pull / exp_sum;
  // `own`: the share of the target where the class is it, else 0. What `pull` is the sum of is taken
  // away from the last: so nothing is left where there is a single class.
  const auto slope = [&](Vec<A> z, Vec<A> w, A own) {
    auto g = exp(z - peak) * factor;
    if constexpr (smoothed) {
      g -= class_share * w;
    }
    g -= own;
    if constexpr (capped) {
      g *= 1 - (z / softcap) * (z / softcap);
    }
    return g * scale;
  };
  const auto ones = splat(A{1});
  for_each_vector<A>(size, [&](int64_t j, int64_t live) {
    const auto z = cap<A, capped>(load(x + j, live), softcap);
    const auto w = smoothed && weight != nullptr ? load(weight + j, live) : ones;
    store(grad + j, slope(z, w, A{}), live);
  });
  const auto w = smoothed && weight != nullptr ? splat(scalar(weight + target)) : ones;
  store(grad + target, slope(z_target, w, share), 1);
}

// Its logits are not read.
template <typename T>
void ignored_row(const CrossEntropyArgs& args, int64_t n) {
  using A = Accumulate<T>;
  static_cast<A*>(args.loss)[n] = 0;
  static_cast<A*>(args.logsumexp)[n] = 0;
  if (args.grad != nullptr) {
    auto* grad = static_cast<T*>(args.grad) + n * args.classes;
    for_each_vector<A>(args.classes, [&](int64_t i, int64_t live) {
      store(grad + i, Vec<A>{}, live);
    });
  }
}

template <typename T, bool capped, bool smoothed>
void rows(const CrossEntropyArgs& args, int64_t begin, int64_t end) {
  using A = Accumulate<T>;
  auto weight_sum = static_cast<A>(args.classes);
  if (smoothed && args.weight != nullptr) {
    const auto* weight = static_cast<const T*>(args.weight);
    Vec<A> total = {};
    for_each_vector<A>(args.classes, [&](int64_t i, int64_t live) {
      total += load(weight + i, live);
    });
    weight_sum = sum<A>(total);
  }
  for (int64_t n = begin; n < end; ++n) {
    if (args.target[n] == args.ignore_index) {
      ignored_row<T>(args, n);
    } else {
      row<T, capped, smoothed>(args, n, weight_sum);
    }
  }
}

}  // namespace

void cross_entropy_rows(const CrossEntropyArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool smoothed = args.class_share != 0;
    if (args.softcap != 0) {
      smoothed ? rows<T, true, true>(args, begin, end) : rows<T, true, false>(args, begin, end);
    } else {
      smoothed ? rows<T, false, true>(args, begin, end) : rows<T, false, false>(args, begin, end);
    }
  });
}

void cross_entropy_backward_rows(const CrossEntropyBackwardArgs& args, int64_t begin,
                                 int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulate<T>;
    for (int64_t n = begin; n < end; ++n) {
      const A scale = static_cast<const A*>(args.row_grad)[n];
      const auto* from = static_cast<const T*>(args.unit_grad) + n * args.stride;
      auto* to = static_cast<T*>(args.grad) + n * args.classes;
      for_each_vector<A>(args.classes, [&](int64_t i, int64_t live) {
        store(to + i, load(from + i, live) * scale, live);
      });
    }
  });
}

void cross_entropy_launch(const CrossEntropyArgs& args) {
  parallel_rows(cross_entropy_rows, args, args.count, args.classes);
}

void cross_entropy_backward_launch(const CrossEntropyBackwardArgs& args) {
  parallel_rows(cross_entropy_backward_rows, args, args.count, args.classes);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(cross_entropy_launch, CrossEntropyArgs);
FUSEWHEEL_LAUNCHER(cross_entropy_backward_launch, CrossEntropyBackwardArgs);
