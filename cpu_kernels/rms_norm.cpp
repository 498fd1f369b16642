// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), row by row

#include <fusewheel/rms_norm.h>

#include "simd/vec.h"

FUSEWHEEL_DECLARE(void rms_norm_rows(const RmsNormArgs&, int64_t, int64_t));
FUSEWHEEL_DECLARE(void rms_norm_backward_chunks(const RmsNormBackwardArgs&, int64_t, int64_t));
FUSEWHEEL_DECLARE(void rms_norm_weight_columns(const RmsNormBackwardArgs&, int64_t, int64_t));

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

template <typename T>
FUSEWHEEL_INLINE Vec<Accumulate<T>> load_weight(const T* weight, int64_t live, RmsNormCast cast) {
  const auto value = load(weight, live);
  return cast == RmsNormCast::kGemma ? value + 1 : value;
}

// Four running sums hide the latency of the addition.
template <typename T>
FUSEWHEEL_INLINE Accumulate<T> sum_of_squares(const T* x, int64_t size) {
  using A = Accumulate<T>;
  Vec<A> sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes<A> <= size; i += 4 * kLanes<A>) {
    for (int k = 0; k < 4; ++k) {
      const auto value = load(x + i + k * kLanes<A>);
      sums[k] += value * value;
    }
  }
  for_each_vector<A>(size - i, [&](int64_t j, int64_t live) {
    const auto value = load(x + i + j, live);
    sums[0] += value * value;
  });
  return sum<A>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <typename A>
FUSEWHEEL_INLINE A square_root(A value) {
  return sizeof(A) == sizeof(float) ? static_cast<A>(__builtin_sqrtf(static_cast<float>(value)))
                                    : static_cast<A>(__builtin_sqrt(value));
}

template <typename T>
void forward(const RmsNormArgs& args, int64_t begin, int64_t end) {
  using A = Accumulate<T>;
  const auto* weight = static_cast<const T*>(args.weight);
  for (int64_t row = begin; row < end; ++row) {
    const auto* x = static_cast<const T*>(args.x) + row * args.x_stride;
    auto* y = static_cast<T*>(args.y) + row * args.size;
    const A mean = sum_of_squares(x, args.size) / static_cast<A>(args.size);
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
// grad_weight = sum over rows of grad * h.
template <typename T>
void backward(const RmsNormBackwardArgs& args, int64_t begin, int64_t end) {
  using A = Accumulate<T>;
  const auto* weight = static_cast<const T*>(args.weight);
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    auto* partial = static_cast<A*>(args.partials) + chunk * args.size;
    for (int64_t i = 0; i < args.size; ++i) {
      partial[i] = 0;
    }
    const int64_t last = (chunk + 1) * args.count / args.chunks;
    for (int64_t row = chunk * args.count / args.chunks; row < last; ++row) {
      const auto* grad = static_cast<const T*>(args.grad) + row * args.grad_stride;
      const auto* x = static_cast<const T*>(args.x) + row * args.x_stride;
      auto* grad_x = static_cast<T*>(args.grad_x) + row * args.size;
      const A rstd = static_cast<const A*>(args.rstd)[row];
      Vec<A> dot = {};
      for_each_vector<A>(args.size, [&](int64_t i, int64_t live) {
        const auto h = load(x + i, live) * rstd;
        const auto dy = load(grad + i, live);
        dot += dy * load_weight(weight + i, live, args.cast) * h;
        store(partial + i,
                   load(partial + i, live) +
                       dy * (args.cast == RmsNormCast::kLlama ? round_to<T>(h) : h),
                   live);
      });
      const A mean = sum<A>(dot) / static_cast<A>(args.size);
      for_each_vector<A>(args.size, [&](int64_t i, int64_t live) {
        const auto h = load(x + i, live) * rstd;
        const auto g = load(grad + i, live) * load_weight(weight + i, live, args.cast);
        store(grad_x + i, rstd * (g - h * mean), live);
      });
    }
  }
}

// The chunks are added in their order, whatever thread made them.
template <typename T>
void weight_columns(const RmsNormBackwardArgs& args, int64_t begin, int64_t end) {
  using A = Accumulate<T>;
  const auto* partials = static_cast<const A*>(args.partials);
  auto* grad_weight = static_cast<T*>(args.grad_weight);
  for_each_vector<A>(end - begin, [&](int64_t i, int64_t live) {
    Vec<A> total = {};
    for (int64_t chunk = 0; chunk < args.chunks; ++chunk) {
      total += load(partials + chunk * args.size + begin + i, live);
    }
    store(grad_weight + begin + i, total, live);
  });
}

}  // namespace

void rms_norm_rows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) { forward<decltype(zero)>(args, begin, end); });
}

void rms_norm_backward_chunks(const RmsNormBackwardArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) { backward<decltype(zero)>(args, begin, end); });
}

void rms_norm_weight_columns(const RmsNormBackwardArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) { weight_columns<decltype(zero)>(args, begin, end); });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include "parallel.h"

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, const Tensor& weight, double eps,
                                    int64_t cast) {
  const RmsNorm call(x, weight, eps, cast);
  const auto rows = FUSEWHEEL_SELECT(rms_norm_rows);
  parallel_for(call.args.count, kGrain / std::max<int64_t>(call.args.size, 1) + 1,
               [&](int64_t begin, int64_t end) { rows(call.args, begin, end); });
  return {call.y, call.rstd};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& x,
                                             const Tensor& weight, const Tensor& rstd,
                                             int64_t cast) {
  const RmsNormBackward call(grad, x, weight, rstd, cast);
  const auto& args = call.args;
  const auto chunks = FUSEWHEEL_SELECT(rms_norm_backward_chunks);
  parallel_for(args.chunks, args.count * args.size > kGrain ? 1 : args.chunks,
               [&](int64_t begin, int64_t end) { chunks(args, begin, end); });
  const auto columns = FUSEWHEEL_SELECT(rms_norm_weight_columns);
  parallel_for(args.size, kGrain / args.chunks,
               [&](int64_t begin, int64_t end) { columns(args, begin, end); });
  return {call.grad_x, call.grad_weight};
}

FUSEWHEEL_KERNELS(library) {
  kernel<rms_norm>(library, "rms_norm");
  kernel<rms_norm_backward>(library, "rms_norm_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
