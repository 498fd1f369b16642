// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), row by row: for every operator with this
// norm in it.
#pragma once

#include <fusewheel/norm/rms_norm_args.h>

#include "together.h"

// Defined in rms_norm.cpp: the weight gradient, from its partials.
FUSEWHEEL_DECLARE(void rms_norm_weight_columns(const RmsNormBackwardArgs&, int64_t, int64_t));

namespace fusewheel::FUSEWHEEL_ISA {

template <typename T>
FUSEWHEEL_INLINE VecPair<Accumulate<T>> load_weight(const T* weight, int64_t live,
                                                    RmsNormCast cast) {
  using A = Accumulate<T>;
  const auto value = load_pair(weight, live);
  return cast == RmsNormCast::kGemma ? value + A{1} : value;
}

// x * rstd, as it is multiplied by the weight.
template <typename T, typename A = Accumulate<T>>
FUSEWHEEL_INLINE VecPair<A> weighted_factor(VecPair<A> h, RmsNormCast cast) {
  return cast == RmsNormCast::kLlama ? round_to<T>(h) : h;
}

// `read(row, i, live)` is asked once for every pair of x, before args.x is read itself: it may
// write it.
template <typename T, typename Read>
FUSEWHEEL_INLINE void rms_norm_forward(const RmsNormArgs& args, int64_t begin, int64_t end,
                                       Read read) {
  using A = Accumulate<T>;
  const auto* weight = static_cast<const T*>(args.weight);
  rows_together(begin, end, [&](int64_t first, auto rows) FUSEWHEEL_STEP {
    A rstd[rows];
    for (int r = 0; r < rows; ++r) {
      const auto square = [&](int64_t i, int64_t live) FUSEWHEEL_STEP {
        const auto value = read(first + r, i, live);
        return value * value;
      };
      const double mean_square =
          sum_of_pairs<A>(args.size, square) / static_cast<double>(args.size);
      rstd[r] = known_nan(1 / square_root(static_cast<A>(mean_square) + static_cast<A>(args.eps)));
      static_cast<A*>(args.rstd)[first + r] = rstd[r];
    }
    const auto* x = static_cast<const T*>(args.x) + first * args.x_stride;
    auto* y = static_cast<T*>(args.y) + first * args.size;
    for_each_pair<A>(args.size, [&](int64_t i, int64_t live) FUSEWHEEL_STEP {
      const auto factor = load_weight(weight + i, live, args.cast);
      for_each<rows>([&](int r) FUSEWHEEL_STEP {
        const auto h = load_pair(x + r * args.x_stride + i, live) * rstd[r];
        store_pair(y + r * args.size + i, weighted_factor<T>(h, args.cast) * factor, live);
      });
    });
  });
}

// With h = x * rstd and g = grad * weight: grad_x = rstd * (g - h * mean(g * h)) and
// grad_weight = sum over rows of grad * h. What is stored is finish(row, i, live, grad_x).
template <typename T, typename Finish>
FUSEWHEEL_INLINE void rms_norm_backward(const RmsNormBackwardArgs& args, int64_t begin, int64_t end,
                                        Finish finish) {
  using A = Accumulate<T>;
  const auto* weight = static_cast<const T*>(args.weight);
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    auto* partial = static_cast<A*>(args.partials) + chunk * args.size;
    clear(partial, args.size);
    const int64_t start = chunk * args.count / args.chunks;
    const int64_t last = (chunk + 1) * args.count / args.chunks;
    rows_together(start, last, [&](int64_t first, auto rows) FUSEWHEEL_STEP {
      const auto* grad = static_cast<const T*>(args.grad) + first * args.grad_stride;
      const auto* x = static_cast<const T*>(args.x) + first * args.x_stride;
      auto* grad_x = static_cast<T*>(args.grad_x) + first * args.size;
      A rstd[rows];
      for (int r = 0; r < rows; ++r) {
        rstd[r] = known_nan(static_cast<const A*>(args.rstd)[first + r]);
      }
      double dots[rows];
      const auto add = [&](int64_t i, int64_t live, VecPair<A>* sums) FUSEWHEEL_STEP {
        const auto factor = load_weight(weight + i, live, args.cast);
        auto total = load_as<T>(partial + i, live);
        for_each<rows>([&](int r) FUSEWHEEL_STEP {
          const auto h = load_pair(x + r * args.x_stride + i, live) * rstd[r];
          const auto dy = load_pair(grad + r * args.grad_stride + i, live);
          total = total + dy * weighted_factor<T>(h, args.cast);
          sums[r] = sums[r] + dy * factor * h;
        });
        store_as<T>(partial + i, total, live);
      };
      sums_together<A>(args.size, dots, add);
      A mean[rows];
      for (int r = 0; r < rows; ++r) {
        mean[r] = static_cast<A>(dots[r] / static_cast<double>(args.size));
      }
      for_each_pair<A>(args.size, [&](int64_t i, int64_t live) FUSEWHEEL_STEP {
        const auto factor = load_weight(weight + i, live, args.cast);
        for_each<rows>([&](int r) FUSEWHEEL_STEP {
          const auto h = load_pair(x + r * args.x_stride + i, live) * rstd[r];
          const auto g = load_pair(grad + r * args.grad_stride + i, live) * factor;
          store_pair(grad_x + r * args.size + i,
                     finish(first + r, i, live, (g - h * mean[r]) * rstd[r]), live);
        });
      });
    });
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
