// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), row by row: for every operator with this
// norm in it.
#pragma once

#include <fusewheel/norm/rms_norm_args.h>

#include "simd/rows.h"

// Defined in rms_norm.cpp: the weight gradient, from its partials.
FUSEWHEEL_DECLARE(void rms_norm_weight_columns(const RmsNormBackwardArgs&, int64_t, int64_t));

namespace fusewheel::FUSEWHEEL_ISA {

template <typename T>
FUSEWHEEL_INLINE Vec<Accumulate<T>> load_weight(const T* weight, int64_t live, RmsNormCast cast) {
  const auto value = load(weight, live);
  return cast == RmsNormCast::kGemma ? value + 1 : value;
}

// `read(row, i, live)` is asked once for every vector of x, before args.x is read itself: it may
// write it.
template <typename T, typename Read>
FUSEWHEEL_INLINE void rms_norm_forward(const RmsNormArgs& args, int64_t begin, int64_t end,
                                       Read read) {
  using A = Accumulate<T>;
  const auto* weight = static_cast<const T*>(args.weight);
  for (int64_t row = begin; row < end; ++row) {
    const auto* x = static_cast<const T*>(args.x) + row * args.x_stride;
    auto* y = static_cast<T*>(args.y) + row * args.size;
    const double squares = sum_of_row<A>(args.size, [&](int64_t i, int64_t live) {
      const auto value = read(row, i, live);
      return value * value;
    });
    const A mean = static_cast<A>(squares / static_cast<double>(args.size));
    const A rstd = 1 / square_root(mean + static_cast<A>(args.eps));
    static_cast<A*>(args.rstd)[row] = rstd;
    for_each_vector<A>(args.size, [&](int64_t i, int64_t live) {
      auto normalised = load(x + i, live) * rstd;
      if (args.cast == RmsNormCast::kLlama) {
        normalised = round_to<T>(normalised);
      }
      store(y + i, normalised * load_weight(weight + i, live, args.cast), live);
    });
  }
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
    const int64_t last = (chunk + 1) * args.count / args.chunks;
    for (int64_t row = chunk * args.count / args.chunks; row < last; ++row) {
      const auto* grad = static_cast<const T*>(args.grad) + row * args.grad_stride;
      const auto* x = static_cast<const T*>(args.x) + row * args.x_stride;
      auto* grad_x = static_cast<T*>(args.grad_x) + row * args.size;
      const A rstd = static_cast<const A*>(args.rstd)[row];
      const double dot = sum_of_row<A>(args.size, [&](int64_t i, int64_t live) {
        const auto h = load(x + i, live) * rstd;
        const auto dy = load(grad + i, live);
        store(partial + i,
              load(partial + i, live) +
                  dy * (args.cast == RmsNormCast::kLlama ? round_to<T>(h) : h),
              live);
        return dy * load_weight(weight + i, live, args.cast) * h;
      });
      const A mean = static_cast<A>(dot / static_cast<double>(args.size));
      for_each_vector<A>(args.size, [&](int64_t i, int64_t live) {
        const auto h = load(x + i, live) * rstd;
        const auto g = load(grad + i, live) * load_weight(weight + i, live, args.cast);
        store(grad_x + i, finish(row, i, live, rstd * (g - h * mean)), live);
      });
    }
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
