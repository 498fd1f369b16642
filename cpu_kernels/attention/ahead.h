// Asks the memory for rows of a cache before they are read.
#pragma once

#include <cstdint>
#include <type_traits>

#include "processor.h"
#include "simd/prefetch.h"
#include "simd/vec.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Rows are asked for so many keys before they are read: by the second-level cache, which can wait for more of them
// than the first, and then by the first. The places of as many more keys than there are must be known.
constexpr int64_t kAhead = 32;
constexpr int64_t kSoon = 4;

template <int level, typename E>
FUSEWHEEL_INLINE void ask_for(const E* row, int64_t columns) {
  constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(E));
  for (int64_t column = 0; column < columns; column += line) {
    __builtin_prefetch(row + column, 0, level);
  }
}

// What is to be read soon, while the row at[0] is. Asked for in step with the products, since what is
// asked for at once is waited for.
template <typename E>
FUSEWHEEL_INLINE void ask_ahead(const E* rows, const int64_t* at, int64_t columns) {
  ask_for<kSecondLevel>(rows + at[kAhead], columns);
  ask_for<kFirstLevel>(rows + at[kSoon], columns);
}

// A part of a cache is read at so many places in turn. A processor fetches ahead within a page of memory;
// so it does in several pages at once.
constexpr int64_t kPlaces = 4;

// Whether lines of such rows are asked for as LinesAhead does. Long rows of float32 are then read faster,
// and short ones no faster.
template <typename E>
constexpr bool kMayAskByLines = kBytes >= 32 && std::is_same_v<E, float>;
template <typename E>
FUSEWHEEL_INLINE bool asks_by_lines(int64_t columns) {
  constexpr int64_t kShortRow = 256;
  return kMayAskByLines<E> && columns * static_cast<int64_t>(sizeof(E)) > kShortRow &&
         choices().far_rows;
}

// Lines of the rows that are needed soon, asked for one at a time and at each place in turn: what the
// processor sees are kPlaces stretches of memory, each from its beginning to its end. It fetches along
// such stretches by itself. Of every kLanes<A> rows at rows + at[i], as many in a row are at each place.
template <typename A, typename E>
class LinesAhead {
 public:
  FUSEWHEEL_INLINE LinesAhead(const E* rows, const int64_t* at, int64_t columns)
      : rows_(rows), at_(at), columns_(columns) {}

  // Asks for so many columns more.
  template <int64_t columns>
  FUSEWHEEL_INLINE void ask() {
    static_assert(columns % kLine == 0);
    for (int64_t i = 0; i < columns / kLine; ++i) {
      ask_for_line();
    }
  }

 private:
  static constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(E));
  static constexpr int64_t kRun = kLanes<A> / kPlaces > 0 ? kLanes<A> / kPlaces : 1;

  FUSEWHEEL_INLINE void ask_for_line() {
    __builtin_prefetch(rows_ + at_[row_] + column_, 0, kSecondLevel);
    row_ += kRun;
    if (row_ < kPlaces * kRun) {
      return;
    }
    row_ -= kPlaces * kRun;
    column_ += kLine;
    if (column_ < columns_) {
      return;
    }
    column_ = 0;
    if (++row_ == kRun) {
      row_ = 0;
      at_ += kPlaces * kRun;
    }
  }

  const E* rows_;
  const int64_t* at_;
  int64_t columns_;
  int64_t row_ = 0;
  int64_t column_ = 0;
};

// Calls body(std::bool_constant<b>{}): whether lines are asked for.
template <typename E, typename Body>
FUSEWHEEL_INLINE void for_asking(int64_t columns, Body body) {
  if constexpr (kMayAskByLines<E>) {
    if (asks_by_lines<E>(columns)) {
      return body(std::true_type{});
    }
  }
  body(std::false_type{});
}

}  // namespace fusewheel::FUSEWHEEL_ISA
