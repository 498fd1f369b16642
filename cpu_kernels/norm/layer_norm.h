// y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var(x) + eps), row by row: for every
// operator with this norm in it.
#pragma once

#include <fusewheel/norm/layer_norm_args.h>

#include "simd/rows.h"

// Defined in layer_norm.cpp: the gradients of weight and bias, from their partials.
FUSEWHEEL_DECLARE(void layer_norm_parameter_columns(const LayerNormBackwardArgs&, int64_t,
                                                    int64_t));

namespace fusewheel::FUSEWHEEL_ISA {

template <typename A>
struct Moments {
  A mean;
  A squares;  // the sum of (x - mean)^2
};

// Two passes over each block of the row, the second from the cache; the blocks are then put
// together (Chan, Golub and LeVeque, 1983). `read(i, live)` is asked once for every vector, before
// x is read itself: it may write it.
template <typename T, typename Read>
FUSEWHEEL_INLINE Moments<Accumulate<T>> moments(const T* x, int64_t size, Read read) {
  using A = Accumulate<T>;
  constexpr int64_t kBlock = 4096;
  Moments<A> all = {size == 0 ? static_cast<A>(__builtin_nanf("")) : 0, 0};
  for (int64_t first = 0; first < size; first += kBlock) {
    const int64_t count = size - first < kBlock ? size - first : kBlock;
    Vec<A> sums[kSums] = {};
    for_each_vector_in_turn<A>(count, [&](int64_t i, int64_t live, int k) {
      sums[k] += read(first + i, live);
    });
    // Where the mean is large, its last bits are the result's first.
    const A mean = static_cast<A>(sum_in_double<A>(sums) / static_cast<double>(count));
    Vec<A> squares[kSums] = {};
    for_each_vector_in_turn<A>(count, [&](int64_t i, int64_t live, int k) {
      const auto deviation = first_lanes<A>(load(x + first + i, live) - mean, live);
      squares[k] += deviation * deviation;
    });
    const A share = static_cast<A>(count) / static_cast<A>(first + count);
    const A apart = mean - all.mean;
    all.mean += apart * share;
    // Not apart * apart first: it may overflow.
    all.squares += sum<A>(squares) + apart * (apart * (static_cast<A>(first) * share));
  }
  return all;
}

// `read(row, i, live)`: see above.
template <typename T, typename Read>
FUSEWHEEL_INLINE void layer_norm_forward(const LayerNormArgs& args, int64_t begin, int64_t end,
                                         Read read) {
  using A = Accumulate<T>;
  const auto* weight = static_cast<const T*>(args.weight);
  const auto* bias = static_cast<const T*>(args.bias);
  for (int64_t row = begin; row < end; ++row) {
    const auto* x = static_cast<const T*>(args.x) + row * args.x_stride;
    auto* y = static_cast<T*>(args.y) + row * args.size;
    const auto found =
        moments(x, args.size, [&](int64_t i, int64_t live) { return read(row, i, live); });
    const A mean = found.mean;
    const A rstd = 1 / square_root(found.squares / static_cast<A>(args.size) +
                                   static_cast<A>(args.eps));
    static_cast<A*>(args.mean)[row] = mean;
    static_cast<A*>(args.rstd)[row] = rstd;
    for_each_vector<A>(args.size, [&](int64_t i, int64_t live) {
      auto value = (load(x + i, live) - mean) * rstd;
      value = weight == nullptr ? value : value * load(weight + i, live);
      value = bias == nullptr ? value : value + load(bias + i, live);
      store(y + i, value, live);
    });
  }
}

// With h = (x - mean) * rstd and g = grad * weight:
// grad_x = rstd * (g - mean(g) - h * mean(g * h)), grad_weight = sum over rows of grad * h, and
// grad_bias that of grad. What is stored is finish(row, i, live, grad_x).
template <typename T, typename Finish>
FUSEWHEEL_INLINE void layer_norm_backward(const LayerNormBackwardArgs& args, int64_t begin,
                                          int64_t end, Finish finish) {
  using A = Accumulate<T>;
  const bool parameters = args.weight_partials != nullptr;
  const auto* weight = static_cast<const T*>(args.weight);
  const auto weighted = [&](Vec<A> dy, int64_t i, int64_t live) {
    return weight == nullptr ? dy : dy * load(weight + i, live);
  };
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    auto* of_weight = static_cast<A*>(args.weight_partials) + chunk * args.size;
    auto* of_bias = static_cast<A*>(args.bias_partials) + chunk * args.size;
    if (parameters) {
      clear(of_weight, args.size);
      clear(of_bias, args.size);
    }
    const int64_t last = (chunk + 1) * args.count / args.chunks;
    for (int64_t row = chunk * args.count / args.chunks; row < last; ++row) {
      const auto* grad = static_cast<const T*>(args.grad) + row * args.grad_stride;
      const auto* x = static_cast<const T*>(args.x) + row * args.x_stride;
      auto* grad_x = static_cast<T*>(args.grad_x) + row * args.size;
      const A mean = static_cast<const A*>(args.mean)[row];
      const A rstd = static_cast<const A*>(args.rstd)[row];
      Vec<A> sums[kSums] = {};
      Vec<A> dots[kSums] = {};
      for_each_vector_in_turn<A>(args.size, [&](int64_t i, int64_t live, int k) {
        const auto h = (load(x + i, live) - mean) * rstd;
        const auto dy = load(grad + i, live);
        const auto g = weighted(dy, i, live);
        sums[k] += g;
        dots[k] += g * h;
        if (parameters) {
          store(of_weight + i, load(of_weight + i, live) + dy * h, live);
          store(of_bias + i, load(of_bias + i, live) + dy, live);
        }
      });
      // The norm of a single element is constant, but grad * weight has been rounded.
      const A slope = args.size == 1 ? 0 : rstd;
      const A mean_g = sum<A>(sums) / static_cast<A>(args.size);
      const A mean_gh = sum<A>(dots) / static_cast<A>(args.size);
      for_each_vector<A>(args.size, [&](int64_t i, int64_t live) {
        const auto h = (load(x + i, live) - mean) * rstd;
        const auto g = weighted(load(grad + i, live), i, live);
        store(grad_x + i, finish(row, i, live, slope * (g - mean_g - h * mean_gh)), live);
      });
    }
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
