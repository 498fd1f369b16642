// The keys of one task of attention_decode, and what it has in scratch memory.
#pragma once

#include "amx.h"
#include "cache.h"
#include "decode_tasks.h"
#include "tiles.h"

namespace fusewheel::FUSEWHEEL_ISA {

// Whether attention_decode of this shape is computed by the tasks below: their tiles have room for many
// queries. The other tasks are as fast for as few as they take at a time.
FUSEWHEEL_INLINE bool uses_amx(const DecodeShape& shape) {
  return kHasAmx && shape.queries == 1 && shape.heads / shape.kv_heads > kFewQueries &&
         shape.dtype != Dtype::kFloat64 &&
         (shape.is_int8 || shape.cache_dtype == Dtype::kBFloat16) && choices().amx;
}

DecodePlan amx_attention_decode_plan(const DecodeShape& shape);
void amx_attention_decode_task(const DecodeArgs& args, int64_t index, void* scratch);

// For numbers of which there is one a key. Behind the last, whole vectors or blocks of AMX are read, and
// some ahead: no more than so many.
constexpr int64_t kBehind = 64;
static_assert(kBehind >= kAhead + 16);
constexpr int64_t kRoom = kDecodePart + kBehind;

// Keys of a sequence that a query sees.
FUSEWHEEL_INLINE Range seen_in(const DecodeShape& shape, int64_t length, int64_t query) {
  const int64_t at = query + length - shape.queries;
  const int64_t begin = first_key(shape, length, query);
  return {begin, at < 0 ? begin : at + 1};
}

// What a task has in scratch memory.
template <typename A>
struct Room {
  A* scores;  // [heads of the task, queries, group, kRoom]
  // Where a key lies in each cache, relative to its head.
  int64_t* keys;
  int64_t* values;
  int64_t* key_scales;
  int64_t* value_scales;
  A* factors;  // of the keys in int8 of each head, rows of kRoom

  Room(const DecodeShape& shape, Scratch& scratch) {
    const int64_t group = shape.heads / shape.kv_heads;
    scores = scratch.take<A>(shape.task_heads * shape.queries * group * kRoom);
    keys = scratch.take<int64_t>(kRoom);
    values = scratch.take<int64_t>(kRoom);
    key_scales = scratch.take<int64_t>(kRoom);
    value_scales = scratch.take<int64_t>(kRoom);
    factors = scratch.take<A>(shape.is_int8 ? shape.task_heads * kRoom : 0);
  }
};

// The keys of one task, counted from `first`.
struct Part {
  int64_t number = 0;  // among the parts of all sequences
  int64_t sequence = 0;
  int64_t head = 0;  // the first of its heads of keys and values
  int64_t first = 0;
  Range keys = {0, 0};

  Part(const DecodeArgs& args, int64_t index) {
    const int64_t kinds = args.shape.kv_heads / args.shape.task_heads;
    while (args.first_part[sequence + 1] * kinds <= index) {
      ++sequence;
    }
    const int64_t before = args.first_part[sequence];
    const int64_t parts = args.first_part[sequence + 1] - before;
    const int64_t own = index - before * kinds;
    number = before + own % parts;
    head = own / parts * args.shape.task_heads;
    const int64_t length = args.lengths[sequence];
    const Range all = {first_key(args.shape, length, 0), length};
    first = (all.begin / kDecodePart + own % parts) * kDecodePart;
    keys = within(all);
  }

  Range within(Range range) const {
    const int64_t begin = range.begin > first ? range.begin - first : 0;
    const int64_t end = range.end - first < kDecodePart ? range.end - first : kDecodePart;
    return {begin, end > begin ? end : begin};
  }

  Range seen_by(const DecodeArgs& args, int64_t query) const {
    return within(seen_in(args.shape, args.lengths[sequence], query));
  }
};

// The keys [begin, begin + count) of a part are not taken in their order, but at kPlaces places in turn, a
// run at each. All queries must see all of them, since masks know keys by their order. AMD processors with
// AVX-512 read keys of 16 and of 8 bits best one after another.
struct Places {
  int64_t begin;
  int64_t count = 0;
  int64_t run = 4;

  Places(const DecodeArgs& args, const Part& part) : begin(part.keys.begin) {
    const auto& shape = args.shape;
    const auto sees_all = [&](int64_t query) {
      const Range seen = part.seen_by(args, query);
      return seen.begin == part.keys.begin && seen.end == part.keys.end;
    };
    // Where lines are asked for, keys that are scored together are at all places.
    const bool wide = shape.cache_dtype == Dtype::kFloat32 && !shape.is_int8;
    if (wide && asks_by_lines<float>(shape.size)) {
      run = kLanes<float> / kPlaces;
    }
    const bool in_turn = kBytes == 64 && choices().rows_in_turn && !wide;
    if (!uses_amx(shape) && !in_turn && sees_all(0) && sees_all(shape.queries - 1)) {
      const int64_t unit = kPlaces * run;
      count = (part.keys.end - begin) / unit * unit;
    }
  }

  int64_t runs() const { return count / run; }

  // The first key of the run that is taken as number `index`.
  int64_t key(int64_t index) const {
    return begin + index % kPlaces * (count / kPlaces) + index / kPlaces * run;
  }
};

// Where each key of a part lies in a cache, relative to its head.
inline void find(const DecodeArgs& args, const Part& part, const Cache& cache, int64_t* at) {
  const Range keys = part.keys;
  for (int64_t key = keys.begin; key < keys.end;) {
    const int64_t entry = (part.first + key) / args.page_size;
    const int64_t begin = entry * args.page_size - part.first;
    const int64_t page =
        args.table == nullptr ? part.sequence : args.table[part.sequence * args.entries + entry];
    const int64_t end = begin + args.page_size < keys.end ? begin + args.page_size : keys.end;
    int64_t place = page * cache.page + (key - begin) * cache.key;
    for (; key < end; ++key, place += cache.key) {
      at[key] = place;
    }
  }
  // In the place of keys that may not be read, one that may.
  for (int64_t key = 0; key < keys.begin; ++key) {
    at[key] = at[keys.begin];
  }
  for (int64_t key = keys.end; key < keys.end + kBehind; ++key) {
    at[key] = at[keys.end - 1];
  }
  const Places places(args, part);
  if (places.count == 0) {
    return;
  }
  int64_t in_row[kDecodePart];
  __builtin_memcpy(in_row, at, sizeof(in_row));
  for (int64_t i = 0; i < places.runs(); ++i) {
    __builtin_memcpy(at + places.begin + i * places.run, in_row + places.key(i),
                     static_cast<size_t>(places.run) * sizeof(int64_t));
  }
}

// The same of another cache: that of `known`, if keys lie alike in both, else in `at`.
inline int64_t* find(const DecodeArgs& args, const Part& part, const Cache& cache,
                     const Cache& other, int64_t* known, int64_t* at) {
  if (cache.page == other.page && cache.key == other.key) {
    return known;
  }
  find(args, part, cache, at);
  return at;
}

}  // namespace fusewheel::FUSEWHEEL_ISA
