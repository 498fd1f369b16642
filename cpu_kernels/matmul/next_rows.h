// What is packed next of a weight, asked for while what was packed before is multiplied.
#pragma once

#include "simd/prefetch.h"
#include "dtype.h"
#include "matmul.h"
#include "panel.h"

namespace fusewheel::FUSEWHEEL_ISA {

// The stretch of a weight that is packed next. Each step of k of the products before asks for one line of
// it: what is asked for at once is waited for. It goes to the second-level cache, since rows that lie 4 KiB
// apart share few places of the first.
class NextRows {
 public:
  NextRows() = default;
  // Elements [begin, begin + count) of rows [row, row + rows) of a weight that is stored as numbers. With
  // `by_rows` one row follows the other, else a line of each.
  NextRows(const LinearWeight& weight, int64_t row, int64_t rows, int64_t begin, int64_t count,
           bool by_rows) {
    const int64_t bytes = bytes_of(weight.dtype);
    const int64_t stride = weight.stride * bytes;
    const int64_t lines = (count * bytes + kLineBytes - 1) / kLineBytes;
    at_ = static_cast<const char*>(weight.data) + row * stride + begin * bytes;
    left_ = rows * lines;
    inner_ = by_rows ? lines : rows;
    inner_step_ = by_rows ? kLineBytes : stride;
    outer_step_ = (by_rows ? stride : kLineBytes) - inner_ * inner_step_;
    until_outer_ = inner_;
  }

  bool is_done() const { return left_ == 0; }

  FUSEWHEEL_INLINE void ask() {
    if (left_ == 0) {
      return;
    }
    __builtin_prefetch(at_, 0, kSecondLevel);
    --left_;
    at_ += inner_step_;
    if (--until_outer_ == 0) {
      at_ += outer_step_;
      until_outer_ = inner_;
    }
  }

 private:
  const char* at_ = nullptr;
  int64_t left_ = 0;
  int64_t inner_ = 0;
  int64_t inner_step_ = 0;
  int64_t outer_step_ = 0;
  int64_t until_outer_ = 0;
};

// A weight of fewer bytes tends to lie in the caches, where asking for it takes longer than it saves.
constexpr int64_t kFewestBytesAsked = int64_t{2} << 20;

// With more rows of a than these, what is packed is multiplied for so long that waiting for it does not count.
constexpr int64_t kMostRowsAsking = 128;

// Codes take longer to decode than to read.
FUSEWHEEL_INLINE bool asks_for_rows(const MatmulArgs& args) {
  return args.weight.kind == WeightKind::kFloating && args.m <= kMostRowsAsking &&
         args.n * args.k * bytes_of(args.weight.dtype) >= kFewestBytesAsked;
}

// Steps of k that are packed together.
FUSEWHEEL_INLINE int64_t steps_together(const MatmulArgs& args) {
  return args.transposed && asks_for_rows(args) ? kTurnedDepth : kDepth;
}

// Where columns [first, end) of y are rows of the weight, packed `columns` at a time for each stretch of k:
// after `column` and [k, k + depth) come the next columns, or the first ones further along k.
inline NextRows next_rows(const MatmulArgs& args, int64_t columns, int64_t first, int64_t column,
                          int64_t end, int64_t k, int64_t depth) {
  if (!asks_for_rows(args)) {
    return {};
  }
  if (column + columns < end) {
    return {args.weight, column + columns, columns, k, depth, false};
  }
  const int64_t left = args.k - k - depth;
  const int64_t next = left < depth ? left : depth;
  return next > 0 ? NextRows(args.weight, first, columns, k + depth, next, false) : NextRows();
}

// Where columns [column, column + columns) of y are columns of the weight: after [k, k + depth).
inline NextRows next_steps(const MatmulArgs& args, int64_t column, int64_t columns, int64_t k,
                           int64_t depth) {
  const int64_t left = args.k - k - depth;
  const int64_t next = left < depth ? left : depth;
  return next > 0 && asks_for_rows(args)
             ? NextRows(args.weight, k + depth, next, column, columns, true)
             : NextRows();
}

}  // namespace fusewheel::FUSEWHEEL_ISA
