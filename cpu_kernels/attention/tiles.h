// What forward and backward share: a tile of scores, kRows queries against kKeys keys, and its
// neighbours in scratch memory.
//
// Dao et al., "FlashAttention" (2022): no more than a tile of the scores exists at any time.
#pragma once

#include "dtype.h"
#include "matmul/tile.h"
#include "simd/math.h"
#include "simd/transpose.h"
#include "tasks.h"

namespace fusewheel::FUSEWHEEL_ISA {

constexpr int64_t kKeys = 128;
constexpr int64_t kRows = 96;
// Rows of a tile are taken so many at a time; the last few are padded to a multiple of this.
constexpr int kFewRows = kTileRows / 3;
// So many where some of the keys are not seen: more of the hidden ones are left out.
constexpr int64_t kEdgeRows = kRows / 2;
static_assert(kEdgeRows % kTileRows == 0 && kTileRows % kFewRows == 0);

constexpr int64_t kLine = 64;  // bytes

// A little longer than the keys: rows whose distance is a power of two share few sets of the cache.
template <typename A>
constexpr int64_t kScoreStride = kKeys + kLine / static_cast<int64_t>(sizeof(A));

constexpr int64_t up_to_multiple(int64_t size, int64_t of) { return (size + of - 1) / of * of; }

template <typename A>
int64_t panels_of(int64_t columns) {
  return (columns + kPanel<A> - 1) / kPanel<A>;
}

// Between rows of `size` elements: whole panels, and an odd number of cache lines.
template <typename A>
int64_t row_stride(int64_t size) {
  constexpr int64_t line = kLine / static_cast<int64_t>(sizeof(A));
  return ((panels_of<A>(size) * kPanel<A> + line - 1) / line | 1) * line;
}

// Gives out scratch memory. Without memory it counts the bytes.
class Scratch {
 public:
  explicit Scratch(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <typename T>
  T* take(int64_t count) {
    T* found = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += up_to_multiple(count * static_cast<int64_t>(sizeof(T)), kLine);
    return found;
  }

  int64_t bytes() const { return bytes_; }

 private:
  char* memory_;
  int64_t bytes_ = 0;
};

// Keys [begin, end) that a query sees.
struct Range {
  int64_t begin;
  int64_t end;
};

FUSEWHEEL_INLINE Range seen_by(const AttentionShape& shape, int64_t query) {
  const int64_t at = query + shape.keys - shape.queries;
  const int64_t first = shape.left < 0 ? 0 : at - shape.left;
  const int64_t end = shape.right < 0 ? shape.keys : at + shape.right + 1;
  const int64_t begin = first > 0 ? first : 0;
  const int64_t bounded = end < shape.keys ? end : shape.keys;
  return {begin, bounded > begin ? bounded : begin};
}

FUSEWHEEL_INLINE int64_t blocks_of(int64_t size, int64_t block) {
  return (size + block - 1) / block;
}

// One value for each query of a head.
template <typename A>
FUSEWHEEL_INLINE A* row_values(void* values, const AttentionShape& shape, int64_t batch,
                               int64_t head) {
  return static_cast<A*>(values) + (batch * shape.heads + head) * shape.all_queries;
}

// Calls body(T{}) with the element type, if numbers of it are computed in A.
template <typename A, typename Body>
FUSEWHEEL_INLINE void for_dtype_in(Dtype dtype, Body body) {
  for_dtype(dtype, [&](auto zero) {
    if constexpr (sizeof(Accumulate<decltype(zero)>) == sizeof(A)) {
      body(zero);
    }
  });
}

// The vector of `live` elements `stride` apart; the other lanes are zero.
template <typename T>
FUSEWHEEL_INLINE Vec<Accumulate<T>> gather(const T* from, int64_t stride, int64_t live) {
  if (stride == 1) {
    return load(from, live);
  }
  T lanes[kLanes<Accumulate<T>>] = {};
  for (int64_t i = 0; i < live; ++i) {
    lanes[i] = from[i * stride];
  }
  return load(lanes);
}

// One head of a tensor: rows of `size` elements of `dtype`.
struct Head {
  Dtype dtype;
  const void* data;
  int64_t row;  // strides
  int64_t element;
  int64_t size;
};

FUSEWHEEL_INLINE Head head_of(const View& view, Dtype dtype, int64_t batch, int64_t head,
                              int64_t size) {
  const int64_t at = batch * view.strides[0] + head * view.strides[1];
  return {dtype, static_cast<const char*>(view.data) + at * bytes_of(dtype), view.strides[2],
          view.strides[3], size};
}

// Rows [first, first + count) times `factor`, `stride` apart; zeros up to the stride.
template <typename A>
void load_rows(const Head& head, int64_t first, int64_t count, A factor, A* to, int64_t stride) {
  for_dtype_in<A>(head.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t whole = head.element == 1 ? head.size / kLanes<A> * kLanes<A> : 0;
    for (int64_t i = 0; i < count; ++i) {
      const T* from = static_cast<const T*>(head.data) + (first + i) * head.row;
      A* row = to + i * stride;
      for (int64_t j = 0; j < whole; j += kLanes<A>) {
        store(row + j, load(from + j) * factor);
      }
      for (int64_t j = whole; j < stride; j += kLanes<A>) {
        const int64_t left = head.size - j;
        store(row + j, left <= 0 ? Vec<A>{}
                                 : gather(from + j * head.element, head.element,
                                          left < kLanes<A> ? left : kLanes<A>) *
                                       factor);
      }
    }
  });
}

// Whether all numbers in rows that load_rows has made are finite.
template <typename A>
bool is_finite(const A* rows, int64_t count, int64_t stride) {
  Vec<A> odd = {};
  for (int64_t i = 0; i < count * stride; i += kLanes<A>) {
    odd += load(rows + i) * A{0};
  }
  return sum<A>(odd) == 0;
}

// Replaces what is not finite by zero in rows that load_rows has made; marks these rows.
template <typename A>
void clean_rows(A* rows, int64_t count, int64_t stride, bool* marks) {
  for (int64_t i = 0; i < count; ++i) {
    marks[i] = false;
    for (int64_t j = 0; j < stride; ++j) {
      A& value = rows[i * stride + j];
      if (!(value * 0 == 0)) {
        marks[i] = true;
        value = 0;
      }
    }
  }
}

// Panels of kPanel columns from kKeys rows: a column is a row of `rows`.
template <typename A>
void turn(const A* rows, int64_t stride, int64_t size, A* panels) {
  constexpr int lanes = kLanes<A>;
  const int64_t depth = up_to_multiple(size, lanes);
  for (int64_t column = 0; column < kKeys; column += lanes) {
    A* panel = panels + column / kPanel<A> * depth * kPanel<A> + column % kPanel<A>;
    for (int64_t k = 0; k < depth; k += lanes) {
      Vec<A> block[lanes];
      for (int lane = 0; lane < lanes; ++lane) {
        block[lane] = load(rows + (column + lane) * stride + k);
      }
      transpose<A>(block);
      for (int lane = 0; lane < lanes; ++lane) {
        store(panel + (k + lane) * kPanel<A>, block[lane]);
      }
    }
  }
}

// c = a * b, or c += a * b, for a multiple of kFewRows rows and whole panels of columns. Rows of b are
// b_stride apart, its panels `panel` elements.
template <typename A, bool depth_major>
__attribute__((noinline)) void product(const A* a, int64_t a_stride, int64_t rows, const A* b,
                                       int64_t b_stride, int64_t panel, int64_t panels,
                                       int64_t depth, A* c, int64_t c_stride, bool accumulate) {
  const int64_t step = depth_major ? 1 : a_stride;
  for (int64_t p = 0; p < panels; ++p) {
    const A* columns = b + p * panel;
    A* to = c + p * kPanel<A>;
    int64_t i = 0;
    for (; i + kTileRows <= rows; i += kTileRows) {
      tile<A, kTileRows, depth_major>(a + i * step, a_stride, columns, b_stride, depth,
                                      to + i * c_stride, c_stride, accumulate);
    }
    for (; i < rows; i += kFewRows) {
      tile<A, kFewRows, depth_major>(a + i * step, a_stride, columns, b_stride, depth,
                                     to + i * c_stride, c_stride, accumulate);
    }
  }
}

// The scores of `rows` queries, rows of `q`, with the columns of turned keys [begin, end).
template <typename A>
void products_of(const A* q, int64_t q_stride, int64_t rows, const A* panels, int64_t size,
                 int64_t begin, int64_t end, A* scores) {
  if (size == 0) {  // no products, sums of 0
    for (int64_t i = 0; i < rows * kScoreStride<A>; ++i) {
      scores[i] = 0;
    }
    return;
  }
  const int64_t depth = up_to_multiple(size, kLanes<A>);
  product<A, false>(q, q_stride, rows, panels + begin / kPanel<A> * depth * kPanel<A>, kPanel<A>,
                    depth * kPanel<A>, panels_of<A>(end - begin), size, scores + begin,
                    kScoreStride<A>, false);
}

template <typename A>
constexpr A kNothing = -static_cast<A>(__builtin_inff());

}  // namespace fusewheel::FUSEWHEEL_ISA
