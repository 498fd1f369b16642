// y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var(x) + eps), row by row: for every
// operator with this norm in it.
#pragma once

#include <fusewheel/norm/layer_norm_args.h>

#include "together.h"

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
// together (Chan, Golub and LeVeque, 1983). `read(i, live)` is asked once for every pair, before
// x is read itself: it may write it.
template <typename T, typename Read>
FUSEWHEEL_INLINE Moments<Accumulate<T>> moments(const T* x, int64_t size, Read read) {
  using A = Accumulate<T>;
  Moments<A> all = {size == 0 ? static_cast<A>(__builtin_nanf("")) : 0, 0};
  for (int64_t first = 0; first < size; first += kBlock) {
    const int64_t count = size - first < kBlock ? size - first : kBlock;
    VecPair<A> sums[kTurns] = {};
    for_each_pair_in_turn<A>(count, [&](int64_t i, int64_t live, int k) FUSEWHEEL_STEP {
      sums[k] = sums[k] + read(first + i, live);
    });
    // Where the mean is large, its last bits are the result's first.
    const A mean = static_cast<A>(sum_in_double(sums) / static_cast<double>(count));
    VecPair<A> squares[kTurns] = {};
    for_each_pair_in_turn<A>(count, [&](int64_t i, int64_t live, int k) FUSEWHEEL_STEP {
      const auto deviation = first_elements<T>(load_pair(x + first + i, live) - mean, live);
      squares[k] = squares[k] + deviation * deviation;
    });
    const A share = static_cast<A>(count) / static_cast<A>(first + count);
    const A apart = mean - all.mean;
    all.mean += apart * share;
    // Not apart * apart first: it may overflow.
    all.squares += sum(squares[0] + squares[1]) + apart * (apart * (static_cast<A>(first) * share));
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
  rows_together(begin, end, [&](int64_t first, auto rows) FUSEWHEEL_STEP {
    const auto* x = static_cast<const T*>(args.x) + first * args.x_stride;
    auto* y = static_cast<T*>(args.y) + first * args.size;
    A mean[rows];
    A rstd[rows];
    for (int r = 0; r < rows; ++r) {
      const auto found = moments(x + r * args.x_stride, args.size,
                                 [&](int64_t i, int64_t live) FUSEWHEEL_STEP {
                                   return read(first + r, i, live);
                                 });
      mean[r] = known_nan(found.mean);
      rstd[r] = known_nan(1 / square_root(found.squares / static_cast<A>(args.size) +
                                          static_cast<A>(args.eps)));
      static_cast<A*>(args.mean)[first + r] = mean[r];
      static_cast<A*>(args.rstd)[first + r] = rstd[r];
    }
    for_each_pair<A>(args.size, [&](int64_t i, int64_t live) FUSEWHEEL_STEP {
      const auto factor = weight == nullptr ? ones<A>() : load_pair(weight + i, live);
      // Zeros that leave a zero's sign alone.
      const auto shift = bias == nullptr ? VecPair<A>{} * A{-1} : load_pair(bias + i, live);
      for_each<rows>([&](int r) FUSEWHEEL_STEP {
        const auto h = (load_pair(x + r * args.x_stride + i, live) - mean[r]) * rstd[r];
        store_pair(y + r * args.size + i, h * factor + shift, live);
      });
    });
  });
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
  const auto load_weight = [&](int64_t i, int64_t live) FUSEWHEEL_STEP {
    return weight == nullptr ? ones<A>() : load_pair(weight + i, live);
  };
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    auto* of_weight = static_cast<A*>(args.weight_partials) + chunk * args.size;
    auto* of_bias = static_cast<A*>(args.bias_partials) + chunk * args.size;
    if (parameters) {
      clear(of_weight, args.size);
      clear(of_bias, args.size);
    }
    const int64_t start = chunk * args.count / args.chunks;
    const int64_t last = (chunk + 1) * args.count / args.chunks;
    rows_together(start, last, [&](int64_t first, auto rows) FUSEWHEEL_STEP {
      const auto* grad = static_cast<const T*>(args.grad) + first * args.grad_stride;
      const auto* x = static_cast<const T*>(args.x) + first * args.x_stride;
      auto* grad_x = static_cast<T*>(args.grad_x) + first * args.size;
      A mean[rows];
      A rstd[rows];
      for (int r = 0; r < rows; ++r) {
        mean[r] = known_nan(static_cast<const A*>(args.mean)[first + r]);
        rstd[r] = known_nan(static_cast<const A*>(args.rstd)[first + r]);
      }
      const auto normalised = [&](int r, int64_t i, int64_t live) FUSEWHEEL_STEP {
        return (load_pair(x + r * args.x_stride + i, live) - mean[r]) * rstd[r];
      };
      double totals[2 * rows];  // of g, then of g * h
      const auto add = [&](int64_t i, int64_t live, VecPair<A>* sums) FUSEWHEEL_STEP {
        const auto factor = load_weight(i, live);
        VecPair<A> total_weight = {};
        VecPair<A> total_bias = {};
        for_each<rows>([&](int r) FUSEWHEEL_STEP {
          const auto h = normalised(r, i, live);
          const auto dy = load_pair(grad + r * args.grad_stride + i, live);
          const auto g = dy * factor;
          sums[r] = sums[r] + g;
          sums[rows + r] = sums[rows + r] + g * h;
          total_weight = total_weight + dy * h;
          total_bias = total_bias + dy;
        });
        if (parameters) {
          store_as<T>(of_weight + i, load_as<T>(of_weight + i, live) + total_weight, live);
          store_as<T>(of_bias + i, load_as<T>(of_bias + i, live) + total_bias, live);
        }
      };
      sums_together<A>(args.size, totals, add);
      A mean_g[rows];
      A mean_gh[rows];
      A slope[rows];
      for (int r = 0; r < rows; ++r) {
        mean_g[r] = static_cast<A>(totals[r] / static_cast<double>(args.size));
        mean_gh[r] = static_cast<A>(totals[rows + r] / static_cast<double>(args.size));
        // The norm of a single element is constant, but grad * weight has been rounded.
        slope[r] = args.size == 1 ? 0 : rstd[r];
      }
      for_each_pair<A>(args.size, [&](int64_t i, int64_t live) FUSEWHEEL_STEP {
        const auto factor = load_weight(i, live);
        for_each<rows>([&](int r) FUSEWHEEL_STEP {
          const auto h = normalised(r, i, live);
          const auto g = load_pair(grad + r * args.grad_stride + i, live) * factor;
          const auto grad_of_x = (g - mean_g[r] - h * mean_gh[r]) * slope[r];
          store_pair(grad_x + r * args.size + i, finish(first + r, i, live, grad_of_x), live);
        });
      });
    });
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
