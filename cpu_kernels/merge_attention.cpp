// Attention to the keys of two parts, given attention to those of either, row by row

#include <fusewheel/merge_attention.h>

#include "simd/rows.h"

FUSEWHEEL_DECLARE(void merge_attention_rows(const MergeAttentionArgs&, int64_t, int64_t));
FUSEWHEEL_DECLARE(void merge_attention_backward_rows(const MergeAttentionBackwardArgs&, int64_t,
                                                     int64_t));

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

FUSEWHEEL_INLINE float exponential(float x) { return __builtin_expf(x); }
FUSEWHEEL_INLINE double exponential(double x) { return __builtin_exp(x); }
FUSEWHEEL_INLINE float log_one_plus(float x) { return __builtin_log1pf(x); }
FUSEWHEEL_INLINE double log_one_plus(double x) { return __builtin_log1p(x); }

// What either part is of the whole.
template <typename A>
struct Shares {
  A own;
  A other;
  A total;  // logsumexp of both
  bool absent;
  bool other_absent;

  FUSEWHEEL_INLINE Shares(A logsumexp, A other_logsumexp)
      : absent(is_nothing(logsumexp)), other_absent(is_nothing(other_logsumexp)) {
    if (absent && other_absent) {
      own = other = 0;
      total = logsumexp;
      return;
    }
    const bool first = logsumexp > other_logsumexp;
    const A peak = first ? logsumexp : other_logsumexp;
    const A rest = first ? other_logsumexp : logsumexp;
    // peak - peak: NaN where it is infinite.
    const A ratio = exponential(rest - peak) + (peak - peak);
    const A larger = 1 / (1 + ratio);
    own = first ? larger : ratio * larger;
    other = first ? ratio * larger : larger;
    total = peak + log_one_plus(ratio);
  }

  static FUSEWHEEL_INLINE bool is_nothing(A logsumexp) {
    return logsumexp == -static_cast<A>(__builtin_inff());
  }
};

// Calls body(row) for rows [begin, end) in the order of memory; row[k] is where operand k has it.
template <int operands, typename Body>
FUSEWHEEL_INLINE void for_each_row(const Geometry<operands>& rows, int64_t begin, int64_t end,
                                   Body body) {
  int64_t position[kMaxDims];
  int64_t row[operands] = {};
  int64_t rest = begin;
  for (int d = 0; d < rows.dims; ++d) {
    position[d] = rest % rows.sizes[d];
    rest /= rows.sizes[d];
    for (int k = 0; k < operands; ++k) {
      row[k] += position[d] * rows.strides[k][d];
    }
  }
  for (int64_t i = begin; i < end; ++i) {
    body(row);
    for (int d = 0; d < rows.dims; ++d) {
      const bool wraps = ++position[d] == rows.sizes[d];
      const int64_t steps = wraps ? 1 - rows.sizes[d] : 1;
      for (int k = 0; k < operands; ++k) {
        row[k] += steps * rows.strides[k][d];
      }
      if (!wraps) {
        break;
      }
      position[d] = 0;
    }
  }
}

template <typename T>
FUSEWHEEL_INLINE void merge(const MergeAttentionArgs& args, int64_t begin, int64_t end) {
  using A = Accumulate<T>;
  for_each_row(args.rows, begin, end, [&](const int64_t* row) {
    const auto value = [&](int k) { return static_cast<const A*>(args.data[k])[row[k]]; };
    const auto* out = static_cast<const T*>(args.data[kOut]) + row[kOut];
    const auto* other = static_cast<const T*>(args.data[kOther]) + row[kOther];
    auto* merged = static_cast<T*>(args.data[kMerged]) + row[kMerged];
    const Shares<A> shares(value(kLogsumexp), value(kOtherLogsumexp));
    static_cast<A*>(args.data[kMergedLogsumexp])[row[kMergedLogsumexp]] = shares.total;
    const auto each = [&](auto element) {
      for_each_vector<A>(args.size, [&](int64_t i, int64_t live) {
        store(merged + i, element(i, live), live);
      });
    };
    if (shares.absent) {
      // Where both are, `other` counts for nothing either.
      const bool nothing = shares.other_absent;
      each([&](int64_t i, int64_t live) {
        return nothing ? Vec<A>{} : load(other + i, live) * shares.other;
      });
    } else if (shares.other_absent) {
      each([&](int64_t i, int64_t live) { return load(out + i, live) * shares.own; });
    } else {
      each([&](int64_t i, int64_t live) {
        return load(out + i, live) * shares.own + load(other + i, live) * shares.other;
      });
    }
  });
}

// With spread = own * other * sum(grad * (out - other)) and the gradient g of the merged logsumexp:
// grad_out = own * grad, grad_logsumexp = own * g + spread; for the other part the sign of spread
// is the other one.
template <typename T>
FUSEWHEEL_INLINE void merge_backward(const MergeAttentionBackwardArgs& args, int64_t begin,
                                     int64_t end) {
  using A = Accumulate<T>;
  for_each_row(args.rows, begin, end, [&](const int64_t* row) {
    const auto value = [&](int k) { return static_cast<const A*>(args.data[k])[row[k]]; };
    const auto rows = [&](int k) { return static_cast<T*>(args.data[k]) + row[k]; };
    const auto write = [&](int k, double to) {
      static_cast<A*>(args.data[k])[row[k]] = static_cast<A>(to);
    };
    const T* out = rows(kOut);
    const T* other = rows(kOther);
    const T* grad = rows(kMerged);
    T* grad_out = rows(kGradOut);
    T* grad_other = rows(kGradOther);
    // In double, because what is left of a gradient may be small beside its summands.
    const Shares<double> shares(value(kLogsumexp), value(kOtherLogsumexp));
    const A own = static_cast<A>(shares.own);
    const A others = static_cast<A>(shares.other);
    const bool both = !shares.absent && !shares.other_absent;
    Vec<A> dots[kSums] = {};
    for_each_vector_in_turn<A>(args.size, [&](int64_t i, int64_t live, int k) {
      const auto g = load(grad + i, live);
      if (both) {
        dots[k] += g * (load(out + i, live) - load(other + i, live));
      }
      store(grad_out + i, shares.absent ? Vec<A>{} : g * own, live);
      store(grad_other + i, shares.other_absent ? Vec<A>{} : g * others, live);
    });
    const double spread = both ? shares.own * shares.other * sum_in_double<A>(dots) : 0;
    const double g = value(kMergedLogsumexp);
    write(kGradLogsumexp, shares.absent ? 0 : g * shares.own + spread);
    write(kGradOtherLogsumexp, shares.other_absent ? 0 : g * shares.other - spread);
  });
}

}  // namespace

void merge_attention_rows(const MergeAttentionArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) { merge<decltype(zero)>(args, begin, end); });
}

void merge_attention_backward_rows(const MergeAttentionBackwardArgs& args, int64_t begin,
                                   int64_t end) {
  for_dtype(args.dtype, [&](auto zero) { merge_backward<decltype(zero)>(args, begin, end); });
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#if FUSEWHEEL_GLUE

#include "parallel.h"

namespace fusewheel {
namespace {

std::tuple<Tensor, Tensor> merge_attention(const Tensor& out, const Tensor& logsumexp,
                                           const Tensor& other, const Tensor& other_logsumexp) {
  const MergeAttention call("merge_attention", out, logsumexp, other, other_logsumexp);
  const auto& args = call.args;
  parallel_rows(FUSEWHEEL_SELECT(merge_attention_rows), args, args.rows.numel, args.size);
  return {call.tensors[kMerged], call.tensors[kMergedLogsumexp]};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> merge_attention_backward(
    const Tensor& grad_merged, const Tensor& grad_merged_logsumexp, const Tensor& out,
    const Tensor& logsumexp, const Tensor& other, const Tensor& other_logsumexp) {
  const MergeAttentionBackward call("merge_attention_backward", grad_merged, grad_merged_logsumexp,
                                    out, logsumexp, other, other_logsumexp);
  const auto& args = call.args;
  parallel_rows(FUSEWHEEL_SELECT(merge_attention_backward_rows), args, args.rows.numel, args.size);
  return {call.tensors[kGradOut], call.tensors[kGradLogsumexp], call.tensors[kGradOther],
          call.tensors[kGradOtherLogsumexp]};
}

FUSEWHEEL_KERNELS(library) {
  kernel<merge_attention>(library, "merge_attention");
  kernel<merge_attention_backward>(library, "merge_attention_backward");
}

}  // namespace
}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
