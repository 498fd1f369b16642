// From products of queries and keys to scores: the soft cap, the bias, and the keys that are not seen.
#pragma once

#include "tiles.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Keys that some rows see: any of them, and all of them.
struct Seen {
  Range any;
  Range all;

  bool is_whole(int64_t first, int64_t keys) const {
    return all.begin <= first && all.end >= first + keys;
  }
};

FUSEWHEEL_INLINE Seen seen_in(const Range* rows, int64_t count) {
  Seen found = {rows[0], rows[0]};
  for (int64_t i = 1; i < count; ++i) {
    const Range seen = rows[i];
    found.any.begin = seen.begin < found.any.begin ? seen.begin : found.any.begin;
    found.any.end = seen.end > found.any.end ? seen.end : found.any.end;
    found.all.begin = seen.begin > found.all.begin ? seen.begin : found.all.begin;
    found.all.end = seen.end < found.all.end ? seen.end : found.all.end;
  }
  return found;
}

// Of queries in a row.
FUSEWHEEL_INLINE Seen seen_by_some(const AttentionShape& shape, int64_t first, int64_t count) {
  const Range low = seen_by(shape, first);
  const Range high = seen_by(shape, first + count - 1);
  return {{low.begin, high.end}, {high.begin, low.end}};
}

// The queries of rows of scores: row r is query first + r % positions of head `head` + r / positions.
struct Queries {
  int64_t batch;
  int64_t head;
  int64_t first;
  int64_t positions;

  // Where the bias of a row begins; null where there is none.
  FUSEWHEEL_INLINE const void* bias(const AttentionArgs& args, int64_t row) const {
    if (args.bias.data == nullptr) {
      return nullptr;
    }
    const auto& strides = args.bias.strides;
    const int64_t at = batch * strides[0] + (head + row / positions) * strides[1] +
                       (first + row % positions) * strides[2];
    const int64_t bytes = args.shape.is_mask ? 1 : bytes_of(args.shape.dtype);
    return static_cast<const char*>(args.bias.data) + at * bytes;
  }
};

// What a bias does to some scores: nothing, anything, or it hides all of these keys.
enum class Effect { kNone, kSome, kHides };

// Calls body(shown, hidden) with the bits of a bias that leaves a score as it is, and of one that hides
// the key.
template <typename Body>
FUSEWHEEL_INLINE Effect for_bits(const AttentionShape& shape, Body body) {
  if (shape.is_mask) {
    return body(uint8_t{1}, uint8_t{0});
  }
  switch (shape.dtype) {
    case Dtype::kFloat32: return body(uint32_t{0}, uint32_t{0xff800000});
    case Dtype::kBFloat16: return body(uint16_t{0}, uint16_t{0xff80});
    case Dtype::kFloat16: return body(uint16_t{0}, uint16_t{0xfc00});
    case Dtype::kFloat64: return body(uint64_t{0}, uint64_t{0xfff0000000000000});
  }
  __builtin_unreachable();
}

// Of one row of a bias, `count` of its elements.
template <typename U>
Effect effect_of_row(const U* row, int64_t stride, int64_t count, U shown, U hidden) {
  const U first = row[0];
  if (first != shown && first != hidden) {
    return Effect::kSome;
  }
  U other = 0;
  if (stride == 1) {
    for (int64_t j = 0; j < count; ++j) {
      other = static_cast<U>(other | (row[j] ^ first));
    }
  } else {
    for (int64_t j = 0; j < count; ++j) {
      other = static_cast<U>(other | (row[j * stride] ^ first));
    }
  }
  return other != 0 ? Effect::kSome : first == shown ? Effect::kNone : Effect::kHides;
}

// Of rows [row, row + rows) and some keys, at least one.
inline Effect effect_of(const AttentionArgs& args, const Queries& queries, int64_t row,
                        int64_t rows, Range keys) {
  if (args.bias.data == nullptr) {
    return Effect::kNone;
  }
  return for_bits(args.shape, [&](auto shown, auto hidden) {
    using U = decltype(shown);
    const int64_t stride = args.bias.strides[3];
    const void* last = nullptr;
    Effect all = Effect::kNone;
    for (int64_t r = row; r < row + rows; ++r) {
      const void* bias = queries.bias(args, r);
      if (bias == last) {
        continue;
      }
      const Effect own = effect_of_row(static_cast<const U*>(bias) + keys.begin * stride, stride,
                                       keys.end - keys.begin, shown, hidden);
      if (own == Effect::kSome || (last != nullptr && own != all)) {
        return Effect::kSome;
      }
      all = own;
      last = bias;
    }
    return all;
  });
}

// Of a range of keys, the first to the last that a row of a bias does not hide.
inline Range shown_by(const AttentionArgs& args, const void* bias, Range keys) {
  for_bits(args.shape, [&](auto, auto hidden) {
    const auto* row = static_cast<const decltype(hidden)*>(bias);
    const int64_t stride = args.bias.strides[3];
    while (keys.begin < keys.end && row[keys.begin * stride] == hidden) {
      ++keys.begin;
    }
    while (keys.begin < keys.end && row[(keys.end - 1) * stride] == hidden) {
      --keys.end;
    }
    return Effect::kSome;
  });
  return keys;
}

// The keys of a block that some rows meet, columns [begin, end), and what is left to do there.
struct Meeting {
  int64_t begin = 0;
  int64_t end = 0;      // `begin` where they meet none
  bool whole = false;   // all rows see all these keys, but for the bias
  bool biased = false;  // the bias does something
};

// Rows [row, row + rows) and the keys [key, key + keys). Columns are multiples of `step`.
inline Meeting meeting_of(const AttentionArgs& args, const Queries& queries, int64_t row,
                          int64_t rows, const Seen& seen, int64_t key, int64_t keys, int64_t step) {
  Range met = seen.any;
  met.begin = met.begin > key ? met.begin : key;
  met.end = met.end < key + keys ? met.end : key + keys;
  const void* bias = queries.bias(args, row);
  if (bias != nullptr && args.bias.strides[2] == 0 &&
      bias == queries.bias(args, row + rows - 1)) {  // padding: one row for all
    met = shown_by(args, bias, met);
  }
  Meeting found;
  if (met.begin >= met.end) {
    return found;
  }
  const int64_t begin = (met.begin - key) / step * step;
  const int64_t end = up_to_multiple(met.end - key, step);
  const Effect effect =
      effect_of(args, queries, row, rows, {key + begin, key + (end < keys ? end : keys)});
  if (effect == Effect::kHides) {
    return found;
  }
  return {begin, end, seen.is_whole(key + begin, end - begin), effect == Effect::kSome};
}

template <typename A>
FUSEWHEEL_INLINE typename VecOf<A>::integer lane_numbers() {
  typename VecOf<A>::integer numbers = {};
  for (int lane = 1; lane < kLanes<A>; ++lane) {
    numbers[lane] = lane;
  }
  return numbers;
}

// A byte for each lane.
template <typename A>
struct BytesOf;
template <>
struct BytesOf<float> {
  typedef uint8_t type __attribute__((vector_size(kLanes<float>)));
};
template <>
struct BytesOf<double> {
  typedef uint8_t type __attribute__((vector_size(kLanes<double>)));
};

// Which of `live` keys a row of a mask shows; not 0 for these.
template <typename A>
FUSEWHEEL_INLINE typename VecOf<A>::integer shown_in(const uint8_t* mask, int64_t stride,
                                                     int64_t live) {
  typename BytesOf<A>::type bytes = {};
  if (stride == 1 && live == kLanes<A>) {
    __builtin_memcpy(&bytes, mask, sizeof(bytes));
  } else {
    for (int64_t i = 0; i < live; ++i) {
      bytes[i] = mask[i * stride];
    }
  }
  return __builtin_convertvector(bytes, typename VecOf<A>::integer);
}

// Adds the bias to columns [begin, end) of scores. Where it is -inf the key is not seen, whatever the
// score. Key `first` has column 0.
template <typename A>
FUSEWHEEL_INLINE void add_bias(const AttentionArgs& args, const void* bias, int64_t first,
                               int64_t begin, int64_t end, A* scores) {
  const auto& shape = args.shape;
  const int64_t stride = args.bias.strides[3];
  const auto for_vectors = [&](auto own, auto change) {
    const int64_t last = shape.keys - first < end ? shape.keys - first : end;
    for (int64_t j = begin; j < last; j += kLanes<A>) {
      const int64_t live = last - j < kLanes<A> ? last - j : kLanes<A>;
      store(scores + j, change(load(scores + j), own + (first + j) * stride, live));
    }
  };
  if (shape.is_mask) {
    for_vectors(static_cast<const uint8_t*>(bias), [&](Vec<A> score, auto from, int64_t live) {
      return shown_in<A>(from, stride, live) != 0 ? score : splat(kNothing<A>);
    });
    return;
  }
  for_dtype_in<A>(shape.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_vectors(static_cast<const T*>(bias), [&](Vec<A> score, auto from, int64_t live) {
      const Vec<A> added = stride == 0 ? splat(gather(from, 1, 1)[0]) : gather(from, stride, live);
      return added == kNothing<A> ? added : score + added;
    });
  });
}

// One row of scores: caps them, adds the bias, and makes those of keys that are not seen -inf. Key
// `first` has column 0; columns [begin, end) are whole vectors. Slopes, where wanted, are tanh.
template <typename A>
FUSEWHEEL_INLINE void finish_row(const AttentionArgs& args, const void* bias, int64_t first,
                                 Range seen, int64_t begin, int64_t end, A* scores, A* slopes) {
  const A cap = static_cast<A>(args.shape.softcap);
  if (cap > 0) {
    for (int64_t j = begin; j < end; j += kLanes<A>) {
      const Vec<A> slope = tanh(load(scores + j) / cap);
      store(scores + j, slope * cap);
      if (slopes != nullptr) {
        store(slopes + j, slope);
      }
    }
  }
  if (bias != nullptr) {
    add_bias(args, bias, first, begin, end, scores);
  }
  const int64_t from = seen.begin - first > begin ? seen.begin - first : begin;
  const int64_t to = seen.end - first < end ? seen.end - first : end;
  for (int64_t j = begin; j < end; j += kLanes<A>) {
    if (j >= from && j + kLanes<A> <= to) {
      continue;
    }
    const auto column = lane_numbers<A>() + static_cast<int>(j);
    const auto low = column - static_cast<int>(from < end ? from : end) >= 0;
    const auto high = column - static_cast<int>(to > begin ? to : begin) < 0;
    const Vec<A> value = load(scores + j);
    store(scores + j, (low & high) != 0 ? value : splat(kNothing<A>));
  }
}

// Whether a query sees a marked key: columns [begin, end) of its scores.
template <typename A>
bool sees_marked(const bool* marks, const A* scores, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; ++j) {
    if (marks[j] && scores[j] != kNothing<A>) {
      return true;
    }
  }
  return false;
}

}  // namespace fusewheel::FUSEWHEEL_ISA
