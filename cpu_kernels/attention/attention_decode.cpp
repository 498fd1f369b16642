// Attention of few queries to a cache, which is read once for all of them
//
// A task is kDecodePart keys of a sequence, of one head, or of all heads where these lie beside each
// other in memory. It reads the keys for the scores of all queries, then the values for their sums.
// What a task computes depends on its keys alone: the same bits for any number of threads.

#include "decode_digits.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

// Values at a time: they stay in the first-level cache for all queries and columns.
template <bool by_lines>
constexpr int64_t kFewValues = by_lines ? 16 : 32;

template <typename A, typename E, bool by_lines>
void score_keys(const DecodeArgs& args, const Part& part, const Room<A>& room,
                DigitScores& digits) {
  const auto& shape = args.shape;
  constexpr int64_t lanes = kLanes<A>;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t stride = args.plan.stride;
  const A* prepared =
      static_cast<const A*>(args.prepared) +
      (part.sequence * shape.kv_heads + part.head) * shape.queries * group * stride;
  if constexpr (sizeof(E) == 1 && sizeof(A) == sizeof(float)) {
    digits.prepare(prepared, stride);
  }
  for (int64_t h = 0; sizeof(E) == 1 && h < shape.task_heads; ++h) {
    take_scales(args, part, args.k_scales, part.head + h, room.key_scales,
                room.factors + h * kRoom);
  }
  const A cap = static_cast<A>(shape.softcap);
  for (int64_t key = part.keys.begin / lanes * lanes; key < part.keys.end; key += lanes) {
    for (int64_t h = 0; h < shape.task_heads; ++h) {
      const int64_t head = part.head + h;
      const E* keys = static_cast<const E*>(args.k.data) + head * args.k.head;
      bool taken = false;
      for_few(shape, h, kFewQueries, [&](const Few& few) {
        const Range seen = part.seen_by(args, few.query);
        if (key + lanes <= seen.begin || key >= seen.end) {
          return;
        }
        Vec<A> found[kFewQueries];
        bool done = false;
        if constexpr (sizeof(E) == 1 && sizeof(A) == sizeof(float)) {
          done = digits.score(few, keys, room.keys + key, &taken, found);
        }
        if (!done) {
          const A* q = prepared + ((h * shape.queries + few.query) * group + few.member) * stride;
          for_queries(few.count, [&](auto count) {
            constexpr int queries = decltype(count)::value;
            score<A, E, queries, by_lines>(q, stride, keys, room.keys + key, shape.size, found);
          });
        }
        A* scores = scores_of(shape, room, few) + key;
        for (int64_t i = 0; i < few.count; ++i) {
          Vec<A> value = found[i];
          if constexpr (sizeof(E) == 1) {
            value *= load(room.factors + h * kRoom + key) * static_cast<A>(kCodeRange);
          }
          store(scores + i * kRoom, cap > 0 ? tanh(value / cap) * cap : value);
        }
      });
    }
  }
}

template <typename A, typename E, bool by_lines>
void add_shares(const DecodeArgs& args, const Part& part, const Room<A>& room) {
  const auto& shape = args.shape;
  const int64_t stride = args.plan.value_stride;
  const auto sums_of = [&](const Few& few) {
    return static_cast<A*>(args.sums) + row_of(shape, part.number, part.head, few) * stride;
  };
  for (int64_t h = 0; h < shape.task_heads; ++h) {
    for_few(shape, h, kFewQueries, [&](const Few& few) {
      for (int64_t i = 0; i < few.count; ++i) {
        A* sums = sums_of(few) + i * shape.queries * stride;
        for (int64_t column = 0; column < stride; ++column) {
          sums[column] = 0;
        }
      }
    });
  }
  constexpr int64_t together = kFewValues<by_lines>;
  for (int64_t key = part.keys.begin; key < part.keys.end; key += together) {
    for (int64_t h = 0; h < shape.task_heads; ++h) {
      const E* values = static_cast<const E*>(args.v.data) + (part.head + h) * args.v.head;
      for_few(shape, h, kFewQueries, [&](const Few& few) {
        const Range seen = part.seen_by(args, few.query);
        const int64_t begin = key > seen.begin ? key : seen.begin;
        const int64_t end = key + together < seen.end ? key + together : seen.end;
        const Sums<A> sums = {scores_of(shape, room, few), kRoom, sums_of(few),
                              shape.queries * stride};
        for_queries(few.count, [&](auto count) {
          add_values<A, E, decltype(count)::value, by_lines>(sums, values, room.values, begin,
                                                             end, shape.value_size);
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
      ask_for<kSecondLevel>(values + room.values[key], args.shape.value_size);
    }
  }
}

template <typename A, typename E>
void attend(const DecodeArgs& args, int64_t index, void* memory) {
  const Part part(args, index);
  Scratch scratch(memory);
  Room<A> room(args.shape, scratch);
  DigitScores digits(args.shape, scratch);
  find(args, part, args.k, room.keys);
  room.values = find(args, part, args.v, args.k, room.keys, room.values);
  if (sizeof(E) == 1 && !in_row(args, args.k_scales)) {
    find(args, part, args.k_scales, room.key_scales);
  }
  if (sizeof(E) == 1 && !in_row(args, args.v_scales)) {
    find(args, part, args.v_scales, room.value_scales);
  }
  for_asking<E>(args.shape.size, [&](auto by_lines) {
    score_keys<A, E, by_lines.value>(args, part, room, digits);
  });
  ask_for_values<A, E>(args, part, room);
  share_keys<A, E>(args, part, room, [] {});
  for_asking<E>(args.shape.value_size, [&](auto by_lines) {
    add_shares<A, E, by_lines.value>(args, part, room);
  });
}

}  // namespace

void attention_decode_task(const DecodeArgs& args, int64_t index, void* scratch) {
  if constexpr (kHasAmx) {
    if (uses_amx(args.shape)) {
      return amx_attention_decode_task(args, index, scratch);
    }
  }
  for_types(args.shape, [&](auto wide, auto own) {
    attend<decltype(wide), decltype(own)>(args, index, scratch);
  });
}

DecodePlan attention_decode_plan(const DecodeShape& shape) {
  if constexpr (kHasAmx) {
    if (uses_amx(shape)) {
      return amx_attention_decode_plan(shape);
    }
  }
  DecodePlan plan = {};
  for_types(shape, [&](auto wide, auto) {
    using A = decltype(wide);
    Scratch counter(nullptr);
    const Room<A> room(shape, counter);
    const DigitScores digits(shape, counter);
    plan = {up_to_multiple(shape.size, kPairOf<A>), up_to_multiple(shape.value_size, kPairOf<A>),
            counter.bytes()};
  });
  return plan;
}

}  // namespace fusewheel::FUSEWHEEL_ISA
