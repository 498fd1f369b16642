// From scores to shares, for a task of attention_decode: the part that all its kernels have in common.
#pragma once

#include "decode_part.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Some queries of heads in a row of one group, at one position: they see the same keys.
struct Few {
  int64_t head;  // of keys and values, counted from the first of the task
  int64_t query;
  int64_t member;  // of the group, the first
  int64_t count;
};

// Calls body(Few) for all queries of a head, at most `most` at a time.
template <typename Body>
FUSEWHEEL_INLINE void for_few(const DecodeShape& shape, int64_t head, int64_t most, Body body) {
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t query = 0; query < shape.queries; ++query) {
    for (int64_t member = 0; member < group; member += most) {
      const int64_t left = group - member;
      body(Few{head, query, member, left < most ? left : most});
    }
  }
}

// Rows of scores.
template <typename A>
FUSEWHEEL_INLINE A* scores_of(const DecodeShape& shape, const Room<A>& room, const Few& few) {
  const int64_t group = shape.heads / shape.kv_heads;
  return room.scores + ((few.head * shape.queries + few.query) * group + few.member) * kRoom;
}

// Number of the first row among those of all parts, or of all sequences.
FUSEWHEEL_INLINE int64_t row_of(const DecodeShape& shape, int64_t number, int64_t head,
                                const Few& few) {
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t own = (head + few.head) * group + few.member;
  return (number * shape.heads + own) * shape.queries + few.query;
}

template <typename A>
FUSEWHEEL_INLINE Vec<A> pick(const void* data, int64_t head, const int64_t* at) {
  A values[kLanes<A>];
  for (int lane = 0; lane < kLanes<A>; ++lane) {
    values[lane] = static_cast<const A*>(data)[head + at[lane]];
  }
  return load(values);
}

// Whether scales lie in a row, so that their places need not be known.
FUSEWHEEL_INLINE bool in_row(const DecodeArgs& args, const Cache& scales) {
  return args.table == nullptr && scales.key == 1;
}

// The scales of all keys of a part, in the order in which keys are taken; zeros in whole vectors.
template <typename A>
FUSEWHEEL_INLINE void take_scales(const DecodeArgs& args, const Part& part, const Cache& scales,
                                  int64_t head, const int64_t* at, A* to) {
  const A* from = static_cast<const A*>(scales.data) + head * scales.head;
  const A* row = from + part.sequence * scales.page + part.first;
  const Range keys = part.keys;
  const int64_t end = up_to_multiple(keys.end, kLanes<A>);
  int64_t key = keys.begin / kLanes<A> * kLanes<A>;
  for (; key < keys.begin; ++key) {
    to[key] = 0;
  }
  if (in_row(args, scales)) {
    const Places places(args, part);
    for (int64_t i = 0; i < places.runs(); ++i, key += places.run) {
      __builtin_memcpy(to + key, row + places.key(i),
                       static_cast<size_t>(places.run) * sizeof(A));
    }
  }
  for (; key < end; ++key) {
    to[key] = key >= keys.end ? A{0} : in_row(args, scales) ? row[key] : from[at[key]];
  }
}

// Makes scores shares of the values, relative to the largest score of this part. Calls between() after
// each row.
template <typename A, typename E, typename Between>
FUSEWHEEL_INLINE void share_keys(const DecodeArgs& args, const Part& part, const Room<A>& room,
                                 Between between) {
  const auto& shape = args.shape;
  constexpr int64_t lanes = kLanes<A>;
  A factors[sizeof(E) == 1 ? kRoom : 1];  // of the values of a head
  const auto share = [&](Range seen, A* scores, A* peak, A* total) {
    const int64_t begin = seen.begin / lanes * lanes;
    const int64_t end = up_to_multiple(seen.end, lanes);
    for (int64_t key = begin; key < seen.begin; ++key) {
      scores[key] = kNothing<A>;
    }
    for (int64_t key = seen.end; key < end; ++key) {
      scores[key] = kNothing<A>;
    }
    Vec<A> largest = splat(kNothing<A>);
    for (int64_t key = begin; key < end; key += lanes) {
      const Vec<A> value = load(scores + key);
      largest = value > largest ? value : largest;
    }
    *peak = max<A>(largest);
    const A base = *peak == kNothing<A> ? A{0} : *peak;
    Vec<A> sums = {};
    for (int64_t key = begin; key < end; key += lanes) {
      Vec<A> value = exp_normal(load(scores + key) - base);
      sums += value;
      if constexpr (sizeof(E) == 1) {
        value *= load(factors + key);
      }
      store(scores + key, value);
    }
    *total = seen.begin < seen.end ? sum<A>(sums) : A{0};
  };
  for (int64_t h = 0; h < shape.task_heads; ++h) {
    if constexpr (sizeof(E) == 1) {
      take_scales(args, part, args.v_scales, part.head + h, room.value_scales, factors);
    }
    for_few(shape, h, kFewQueries, [&](const Few& few) {
      const Range seen = part.seen_by(args, few.query);
      A* scores = scores_of(shape, room, few);
      for (int64_t i = 0; i < few.count; ++i) {
        const int64_t row = row_of(shape, part.number, part.head, few) + i * shape.queries;
        share(seen, scores + i * kRoom, static_cast<A*>(args.peaks) + row,
              static_cast<A*>(args.totals) + row);
        between();
      }
    });
  }
}

}  // namespace fusewheel::FUSEWHEEL_ISA
