// Attention of few queries to a cache, which is read once for all of them
//
// A task is kDecodePart keys of a sequence, of one head, or of all heads where these lie beside each
// other in memory. It reads the keys for the scores of all queries, then the values for their sums.
// What a task computes depends on its keys alone: the same bits for any number of threads.

#include "decode_part.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

// Values at a time: they stay in the first-level cache for all queries and columns.
constexpr int64_t kFewValues = 32;

// Some queries of heads in a row of one group, at one position: they see the same keys.
struct Few {
  int64_t head;  // of keys and values, counted from the first of the task
  int64_t query;
  int64_t member;  // of the group, the first
  int64_t count;
};

template <typename Body>
FUSEWHEEL_INLINE void for_few(const DecodeShape& shape, int64_t head, Body body) {
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t query = 0; query < shape.queries; ++query) {
    for (int64_t member = 0; member < group; member += kFewQueries) {
      const int64_t left = group - member;
      body(Few{head, query, member, left < kFewQueries ? left : kFewQueries});
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

template <typename A, typename E>
void score_keys(const DecodeArgs& args, const Part& part, const Room<A>& room) {
  const auto& shape = args.shape;
  constexpr int64_t lanes = kLanes<A>;
  const int64_t group = shape.heads / shape.kv_heads;
  const A cap = static_cast<A>(shape.softcap);
  for (int64_t key = part.keys.begin / lanes * lanes; key < part.keys.end; key += lanes) {
    for (int64_t h = 0; h < shape.task_heads; ++h) {
      const int64_t head = part.head + h;
      const E* keys = static_cast<const E*>(args.k.data) + head * args.k.head;
      Vec<A> factors = {};
      if constexpr (sizeof(E) == 1) {
        factors = pick<A>(args.k_scales.data, head * args.k_scales.head, room.key_scales + key);
      }
      for_few(shape, h, [&](const Few& few) {
        const Range seen = part.seen_by(args, few.query);
        if (key + lanes <= seen.begin || key >= seen.end) {
          return;
        }
        const int64_t own = (part.sequence * shape.kv_heads + head) * shape.queries + few.query;
        const A* q = static_cast<const A*>(args.prepared) +
                     (own * group + few.member) * args.plan.stride;
        A* scores = scores_of(shape, room, few) + key;
        for_queries(few.count, [&](auto count) {
          constexpr int queries = decltype(count)::value;
          Vec<A> found[queries];
          score<A, E, queries>(q, args.plan.stride, keys, room.keys + key, shape.size, found);
          for (int i = 0; i < queries; ++i) {
            Vec<A> value = found[i];
            if constexpr (sizeof(E) == 1) {
              value *= factors;
            }
            store(scores + i * kRoom, cap > 0 ? tanh(value / cap) * cap : value);
          }
        });
      });
    }
  }
}

// Makes scores shares of the values, relative to the largest score of this part.
template <typename A, typename E>
void share_keys(const DecodeArgs& args, const Part& part, const Room<A>& room) {
  const auto& shape = args.shape;
  constexpr int64_t lanes = kLanes<A>;
  const auto share = [&](Range seen, int64_t head, A* scores, A* peak, A* total) {
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
      Vec<A> value = exp(load(scores + key) - base);
      sums += value;
      if constexpr (sizeof(E) == 1) {
        value *= pick<A>(args.v_scales.data, head, room.value_scales + key);
      }
      store(scores + key, value);
    }
    *total = seen.begin < seen.end ? sum<A>(sums) : A{0};
  };
  for (int64_t h = 0; h < shape.task_heads; ++h) {
    const int64_t head = (part.head + h) * args.v_scales.head;
    for_few(shape, h, [&](const Few& few) {
      const Range seen = part.seen_by(args, few.query);
      A* scores = scores_of(shape, room, few);
      for (int64_t i = 0; i < few.count; ++i) {
        const int64_t row = row_of(shape, part.number, part.head, few) + i * shape.queries;
        share(seen, head, scores + i * kRoom, static_cast<A*>(args.peaks) + row,
              static_cast<A*>(args.totals) + row);
      }
    });
  }
}

template <typename A, typename E>
void add_shares(const DecodeArgs& args, const Part& part, const Room<A>& room) {
  const auto& shape = args.shape;
  const int64_t stride = args.plan.value_stride;
  const auto sums_of = [&](const Few& few) {
    return static_cast<A*>(args.sums) + row_of(shape, part.number, part.head, few) * stride;
  };
  for (int64_t h = 0; h < shape.task_heads; ++h) {
    for_few(shape, h, [&](const Few& few) {
      for (int64_t i = 0; i < few.count; ++i) {
        A* sums = sums_of(few) + i * shape.queries * stride;
        for (int64_t column = 0; column < stride; ++column) {
          sums[column] = 0;
        }
      }
    });
  }
  for (int64_t key = part.keys.begin; key < part.keys.end; key += kFewValues) {
    for (int64_t h = 0; h < shape.task_heads; ++h) {
      const E* values = static_cast<const E*>(args.v.data) + (part.head + h) * args.v.head;
      for_few(shape, h, [&](const Few& few) {
        const Range seen = part.seen_by(args, few.query);
        const int64_t begin = key > seen.begin ? key : seen.begin;
        const int64_t end = key + kFewValues < seen.end ? key + kFewValues : seen.end;
        const Sums<A> sums = {scores_of(shape, room, few), kRoom, sums_of(few),
                              shape.queries * stride};
        for_queries(few.count, [&](auto count) {
          add_values<A, E, decltype(count)::value>(sums, values, room.values, begin, end,
                                                   shape.value_size);
        });
      });
    }
  }
}

// The first values, which are on their way while the keys are made shares.
template <typename A, typename E>
void ask_for_values(const DecodeArgs& args, const Part& part, const Room<A>& room) {
  for (int64_t key = part.keys.begin; key < part.keys.begin + kAhead; ++key) {
    for (int64_t h = 0; h < args.shape.task_heads; ++h) {
      const E* values = static_cast<const E*>(args.v.data) + (part.head + h) * args.v.head;
      ask_for(values + room.values[key], args.shape.value_size);
    }
  }
}

template <typename A, typename E>
void attend(const DecodeArgs& args, int64_t index, void* memory) {
  const Part part(args, index);
  Scratch scratch(memory);
  const Room<A> room(args.shape, scratch);
  find(args, part, args.k, room.keys);
  find(args, part, args.v, room.values);
  if constexpr (sizeof(E) == 1) {
    find(args, part, args.k_scales, room.key_scales);
    find(args, part, args.v_scales, room.value_scales);
  }
  score_keys<A, E>(args, part, room);
  ask_for_values<A, E>(args, part, room);
  share_keys<A, E>(args, part, room);
  add_shares<A, E>(args, part, room);
}

}  // namespace

void attention_decode_task(const DecodeArgs& args, int64_t index, void* scratch) {
  for_types(args.shape, [&](auto wide, auto own) {
    attend<decltype(wide), decltype(own)>(args, index, scratch);
  });
}

DecodePlan attention_decode_plan(const DecodeShape& shape) {
  DecodePlan plan = {};
  for_types(shape, [&](auto wide, auto) {
    using A = decltype(wide);
    Scratch counter(nullptr);
    const Room<A> room(shape, counter);
    plan = {up_to_multiple(shape.size, kPair<A>), up_to_multiple(shape.value_size, kPair<A>),
            counter.bytes()};
  });
  return plan;
}

}  // namespace fusewheel::FUSEWHEEL_ISA
