// Attention to the keys of two parts, given attention to those of either, row by row

#include <fusewheel/attention/merge_attention_args.h>

#include "parallel.h"
#include "simd/math.h"
#include "simd/rows.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

// A row of every operand, and what either part is of the whole.
template <typename S, int operands>
struct Row {
  int64_t at[operands];
  S own;
  S other;
  S total;  // logsumexp of both
  bool absent;
  bool other_absent;
};

// The shares of a vector of rows, from the logsumexp of each part.
template <typename S, int operands>
FUSEWHEEL_INLINE void divide(const S* logsumexp, const S* other_logsumexp,
                             Row<S, operands> (&rows)[kLanes<S>]) {
  const auto a = load(logsumexp);
  const auto b = load(other_logsumexp);
  const auto peak = a > b ? a : b;
  const auto rest = a > b ? b : a;
  // peak - peak: NaN where it is infinite.
  const auto ratio = exp(rest - peak) + (peak - peak);
  const auto larger = 1 / (1 + ratio);
  const auto smaller = ratio * larger;
  const auto own = a > b ? larger : smaller;
  const auto other = a > b ? smaller : larger;
  const auto total = peak + log_one_plus(ratio);
  const S nothing = -static_cast<S>(__builtin_inff());
  for (int lane = 0; lane < kLanes<S>; ++lane) {
    auto& row = rows[lane];
    row.own = own[lane];
    row.other = other[lane];
    row.absent = logsumexp[lane] == nothing;
    row.other_absent = other_logsumexp[lane] == nothing;
    row.total = row.absent && row.other_absent ? nothing : total[lane];
  }
}

// Calls body(row) for rows [begin, end) in the order of memory, their shares computed in S.
template <typename A, typename S, int operands, typename Body>
FUSEWHEEL_INLINE void for_each_row(const MergeArgs<operands>& args, int64_t begin, int64_t end,
                                   Body body) {
  const auto& geometry = args.rows;
  int64_t position[kMergedDims];
  int64_t at[operands] = {};
  int64_t rest = begin;
  for (int d = 0; d < geometry.dims; ++d) {
    position[d] = rest % geometry.sizes[d];
    rest /= geometry.sizes[d];
    for (int k = 0; k < operands; ++k) {
      at[k] += position[d] * geometry.strides[k][d];
    }
  }
  const auto advance = [&] {
    for (int d = 0; d < geometry.dims; ++d) {
      const bool wraps = ++position[d] == geometry.sizes[d];
      const int64_t steps = wraps ? 1 - geometry.sizes[d] : 1;
      for (int k = 0; k < operands; ++k) {
        at[k] += steps * geometry.strides[k][d];
      }
      if (!wraps) {
        return;
      }
      position[d] = 0;
    }
  };
  for (int64_t i = begin; i < end; i += kLanes<S>) {
    const int64_t live = end - i < kLanes<S> ? end - i : kLanes<S>;
    Row<S, operands> rows[kLanes<S>];
    S values[2][kLanes<S>] = {};
    for (int64_t lane = 0; lane < live; ++lane) {
      for (int k = 0; k < operands; ++k) {
        rows[lane].at[k] = at[k];
      }
      values[0][lane] = static_cast<const A*>(args.data[kLogsumexp])[at[kLogsumexp]];
      values[1][lane] = static_cast<const A*>(args.data[kOtherLogsumexp])[at[kOtherLogsumexp]];
      advance();
    }
    divide<S>(values[0], values[1], rows);
    for (int64_t lane = 0; lane < live; ++lane) {
      body(rows[lane]);
    }
  }
}

template <typename T>
FUSEWHEEL_INLINE void merge(const MergeAttentionArgs& args, int64_t begin, int64_t end) {
  using A = Accumulate<T>;
  for_each_row<A, A>(args, begin, end, [&](const Row<A, kMergeOperands>& row) {
    const auto* out = static_cast<const T*>(args.data[kOut]) + row.at[kOut];
    const auto* other = static_cast<const T*>(args.data[kOther]) + row.at[kOther];
    auto* merged = static_cast<T*>(args.data[kMerged]) + row.at[kMerged];
    static_cast<A*>(args.data[kMergedLogsumexp])[row.at[kMergedLogsumexp]] = row.total;
    const auto each = [&](auto element) {
      for_each_vector<A>(args.size, [&](int64_t i, int64_t live) {
        store(merged + i, element(i, live), live);
      });
    };
    if (row.absent && row.other_absent) {
      each([](int64_t, int64_t) { return Vec<A>{}; });
    } else if (row.absent) {
      each([&](int64_t i, int64_t live) { return load(other + i, live) * row.other; });
    } else if (row.other_absent) {
      each([&](int64_t i, int64_t live) { return load(out + i, live) * row.own; });
    } else {
      each([&](int64_t i, int64_t live) {
        return load(out + i, live) * row.own + load(other + i, live) * row.other;
      });
    }
  });
}

// With spread = own * other * sum(grad * (out - other)) and the gradient g of the merged logsumexp:
// grad_out = own * grad, grad_logsumexp = own * g + spread; for the other part the sign of spread
// is the other one. The shares are double, because what is left of a gradient may be small beside
// its summands.
template <typename T>
FUSEWHEEL_INLINE void merge_backward(const MergeAttentionBackwardArgs& args, int64_t begin,
                                     int64_t end) {
  using A = Accumulate<T>;
  for_each_row<A, double>(args, begin, end, [&](const Row<double, kMergeBackwardOperands>& row) {
    const auto elements = [&](int k) { return static_cast<T*>(args.data[k]) + row.at[k]; };
    const auto value = [&](int k) -> A& { return static_cast<A*>(args.data[k])[row.at[k]]; };
    const T* out = elements(kOut);
    const T* other = elements(kOther);
    const T* grad = elements(kMerged);
    T* grad_out = elements(kGradOut);
    T* grad_other = elements(kGradOther);
    const A own_share = static_cast<A>(row.own);
    const A other_share = static_cast<A>(row.other);
    const bool both = !row.absent && !row.other_absent;
    Vec<A> dots[kSums] = {};
    for_each_vector_in_turn<A>(args.size, [&](int64_t i, int64_t live, int k) {
      const auto g = load(grad + i, live);
      if (both) {
        dots[k] += g * (load(out + i, live) - load(other + i, live));
      }
      store(grad_out + i, row.absent ? Vec<A>{} : g * own_share, live);
      store(grad_other + i, row.other_absent ? Vec<A>{} : g * other_share, live);
    });
    const double spread = both ? row.own * row.other * sum_in_double<A>(dots) : 0;
    const double g = value(kMergedLogsumexp);
    value(kGradLogsumexp) = static_cast<A>(row.absent ? 0 : g * row.own + spread);
    value(kGradOtherLogsumexp) = static_cast<A>(row.other_absent ? 0 : g * row.other - spread);
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

void merge_attention_launch(const MergeAttentionArgs& args) {
  parallel_rows(merge_attention_rows, args, args.rows.numel, args.size);
}

void merge_attention_backward_launch(const MergeAttentionBackwardArgs& args) {
  parallel_rows(merge_attention_backward_rows, args, args.rows.numel, args.size);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(merge_attention_launch, MergeAttentionArgs);
FUSEWHEEL_LAUNCHER(merge_attention_backward_launch, MergeAttentionBackwardArgs);
