// attention_decode of one query against a cache in bfloat16 or int8, by AMX. What a task is, and what it
// leaves in memory, is as in attention_decode.cpp. Codes in int8 are exact in bfloat16.
//
// Queries and shares are cut into parts in bfloat16 that add up to them, and each part is multiplied: so
// nothing is lost. A tile has room for the parts of five to eight queries, which read the cache once.

#include "amx_decode_pack.h"

#if defined(__AVX512F__)

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

// What a task has in scratch memory beside its scores.
struct Tiling {
  int64_t depth;    // of keys, whole steps
  int64_t columns;  // of values, whole pairs of tiles
  int64_t few;      // groups of queries of all heads of the task
  BFloat16* queries;
  BFloat16* rows;  // keys that are not multiplied where they lie
  BFloat16* values;
  BFloat16* shares;
  float* products;
  float* sums;

  Tiling(const DecodeShape& shape, const Cut& cut, Scratch& scratch) {
    depth = up_to_multiple(shape.size, kStep);
    columns = up_to_multiple(shape.value_size, kPair);
    few = shape.task_heads * blocks_of(shape.heads / shape.kv_heads, cut.queries);
    queries = scratch.take<BFloat16>(few * kTile * depth);
    rows = scratch.take<BFloat16>(kTile * step_stride(shape.size));
    values = scratch.take<BFloat16>(kBlock * columns);
    shares = scratch.take<BFloat16>(kTile * kBlock);
    products = scratch.take<float>(kTile * kTile);
    sums = scratch.take<float>(few * kTile * columns);
  }

  int64_t index(const DecodeShape& shape, const Cut& cut, const Few& own) const {
    return own.head * (few / shape.task_heads) + own.member / cut.queries;
  }
};

// Queries are multiplied by it, and scores divided by it at last: products with codes in int8 would be
// infinite where scores are not.
template <typename E>
constexpr float kQueryUnit = sizeof(E) == 1 ? 0x1p-16f : 1.0f;

// Queries as columns to multiply by.
template <typename E>
FUSEWHEEL_AMX void pack_queries(const DecodeArgs& args, const Part& part, const Cut& cut,
                                const Few& few, BFloat16* to) {
  const auto& shape = args.shape;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t head = (part.head + few.head) * group + few.member;
  for (int64_t column = 0; column < shape.size; column += kStep) {
    const int64_t live = shape.size - column < kStep ? shape.size - column : kStep;
    Vec<float> block[kTile] = {};
    for (int64_t i = 0; i < few.count; ++i) {
      const int64_t from = part.sequence * args.q_strides[0] + (head + i) * args.q_strides[1];
      float plain[kStep] = {};
      widen_all(shape.dtype, args.q, from + column, live, plain);
      __m512i parts[kTile];
      cut_numbers(load(plain) * kQueryUnit<E>, load(plain + kTile) * kQueryUnit<E>, cut.parts,
                  parts, 1);
      for (int64_t p = 0; p < cut.parts; ++p) {
        block[p * cut.queries + i] = bit_cast<Vec<float>>(parts[p]);
      }
    }
    turn_pairs(block, to + column * kTile, kStep);
  }
}

// Products of sixteen keys, rows, with the columns `queries`.
template <typename E>
FUSEWHEEL_AMX_INLINE void multiply_keys(const Keys& keys, const BFloat16* queries, int64_t depth,
                                        Ahead<E>* next, float* products) {
  const auto stride = static_cast<size_t>(keys.stride) * sizeof(BFloat16);
  _tile_zero(0);
  for (int64_t k = 0; k < depth; k += kStep) {
    _tile_loadd(1, keys.data + k, stride);
    _tile_loadd(2, queries + k * kTile, kLine);
    _tile_dpbf16ps(0, 1, 2);
    next->ask(4);
  }
  _tile_stored(0, products, kLine);
}

// From products with the parts of queries to scores, rows of queries: sixteen keys, with a factor each, and
// then a factor for all.
FUSEWHEEL_INLINE void finish_scores(const DecodeShape& shape, const Cut& cut, const float* products,
                                    int64_t count, Vec<float> factors, float scale,
                                    float* scores) {
  const float cap = static_cast<float>(shape.softcap);
  Vec<float> block[kTile];
  for (int64_t i = 0; i < kTile; ++i) {
    block[i] = load(products + i * kTile);
  }
  transpose<float>(block);
  for (int64_t i = 0; i < count; ++i) {
    // An infinite product stays what it is.
    const Vec<float> first = block[i];
    const Vec<float> whole = first * 0.0f == 0.0f ? first + cut.small(block, i) : first;
    const Vec<float> score = whole * factors * scale;
    store(scores + i * kRoom, cap > 0 ? tanh(score / cap) * cap : score);
  }
}

template <typename E>
FUSEWHEEL_AMX void score_keys(const DecodeArgs& args, const Part& part, const Cut& cut,
                              const Room<float>& room, const Tiling& tiling) {
  const auto& shape = args.shape;
  const auto scale = static_cast<float>(shape.scale / kQueryUnit<E>);
  for (int64_t key = part.keys.begin / kTile * kTile; key < part.keys.end; key += kTile) {
    const int64_t end = key + 2 * kTile < part.keys.end ? key + 2 * kTile : part.keys.end;
    for (int64_t h = 0; h < shape.task_heads; ++h) {
      const int64_t head = part.head + h;
      const E* own = static_cast<const E*>(args.k.data) + head * args.k.head;
      Vec<float> factors = splat(1.0f);
      if constexpr (sizeof(E) == 1) {
        factors = pick<float>(args.k_scales.data, head * args.k_scales.head, room.key_scales + key);
      }
      const Keys keys = keys_at(own, room.keys + key, shape.size, tiling.rows);
      Ahead<E> next = {own, room.keys, shape.size, key + kTile, end};
      for_few(shape, h, cut.queries, [&](const Few& few) FUSEWHEEL_AMX {
        multiply_keys(keys, tiling.queries + tiling.index(shape, cut, few) * kTile * tiling.depth,
                      tiling.depth, &next, tiling.products);
        finish_scores(shape, cut, tiling.products, few.count, factors, scale,
                      scores_of(shape, room, few) + key);
      });
      next.ask(kTile);
    }
  }
}

template <typename E>
FUSEWHEEL_AMX void add_shares(const DecodeArgs& args, const Part& part, const Cut& cut,
                              const Room<float>& room, const Tiling& tiling) {
  const auto& shape = args.shape;
  const int64_t first = part.keys.begin / kBlock * kBlock;
  for (int64_t key = first; key < part.keys.end; key += kBlock) {
    // share_keys has made shares of whole vectors of keys.
    const Range known = {part.keys.begin / kTile * kTile - key,
                         up_to_multiple(part.keys.end, kTile) - key};
    for (int64_t h = 0; h < shape.task_heads; ++h) {
      const E* own = static_cast<const E*>(args.v.data) + (part.head + h) * args.v.head;
      const int64_t end = key + 2 * kBlock < part.keys.end ? key + 2 * kBlock : part.keys.end;
      Ahead<E> next = {own, room.values, shape.value_size, key + kBlock, end};
      pack_values(own, room.values + key, shape.value_size, &next, tiling.values);
      for_few(shape, h, cut.queries, [&](const Few& few) FUSEWHEEL_AMX {
        pack_shares(cut, scores_of(shape, room, few) + key, few.count, known, tiling.shares);
        float* sums = tiling.sums + tiling.index(shape, cut, few) * kTile * tiling.columns;
        for (int64_t column = 0; column < tiling.columns; column += kPair) {
          amx_block<1>(tiling.shares, kBlock, {tiling.values + column * kBlock, kBlock * kTile},
                       kBlock / kStep, sums + column, tiling.columns, key > first);
          next.ask(8);
        }
      });
      next.ask(kBlock);
    }
  }
}

// Adds what the parts of shares give; columns in the order of E.
template <typename E>
FUSEWHEEL_INLINE void finish_sums(const DecodeArgs& args, const Part& part, const Cut& cut,
                                  const Few& few, const float* sums, int64_t stride) {
  for (int64_t i = 0; i < few.count; ++i) {
    float* to = static_cast<float*>(args.sums) +
                (row_of(args.shape, part.number, part.head, few) + i) * stride;
    for (int64_t column = 0; column < stride; column += kTile) {
      Vec<float> rows[kTile];
      for (int64_t p = 0; p < cut.parts; ++p) {
        rows[p * cut.queries + i] = load(sums + (p * cut.queries + i) * stride + column);
      }
      store(to + column, rows[i] + cut.small(rows, i));
    }
    for (int64_t column = 0; sizeof(E) == 1 && column < stride; column += kPair) {
      float plain[kPair];
      from_pair<float, BFloat16>(to + column, plain);
      __builtin_memcpy(to + column, plain, sizeof(plain));
    }
  }
}

template <typename E>
FUSEWHEEL_AMX void attend(const DecodeArgs& args, int64_t index, void* memory) {
  const auto& shape = args.shape;
  const Part part(args, index);
  const Cut cut(shape);
  Scratch scratch(memory);
  const Room<float> room(shape, scratch);
  const Tiling tiling(shape, cut, scratch);
  const auto for_all = [&](auto body) {
    for (int64_t h = 0; h < shape.task_heads; ++h) {
      for_few(shape, h, cut.queries, body);
    }
  };
  find(args, part, args.k, room.keys);
  const E* keys = static_cast<const E*>(args.k.data) + part.head * args.k.head;
  Ahead<E>{keys, room.keys, shape.size, part.keys.begin, part.keys.end}.ask(kTile);
  find(args, part, args.v, room.values);
  if constexpr (sizeof(E) == 1) {
    find(args, part, args.k_scales, room.key_scales);
    find(args, part, args.v_scales, room.value_scales);
  }
  __builtin_memset(tiling.shares, 0, kTile * kBlock * sizeof(BFloat16));
  for_all([&](const Few& few) {
    pack_queries<E>(args, part, cut, few,
                    tiling.queries + tiling.index(shape, cut, few) * kTile * tiling.depth);
  });
  {
    const Tiles tiles;
    score_keys<E>(args, part, cut, room, tiling);
  }
  {
    const Tiles tiles(cut.rows());
    const E* values = static_cast<const E*>(args.v.data) + part.head * args.v.head;
    Ahead<E> next = {values, room.values, shape.value_size, part.keys.begin, part.keys.begin + kBlock};
    share_keys<float, E>(args, part, room, [&] { next.ask(kTile); });
    add_shares<E>(args, part, cut, room, tiling);
  }
  for_all([&](const Few& few) {
    finish_sums<E>(args, part, cut, few,
                tiling.sums + tiling.index(shape, cut, few) * kTile * tiling.columns,
                tiling.columns);
  });
}

}  // namespace

void amx_attention_decode_task(const DecodeArgs& args, int64_t index, void* scratch) {
  return args.shape.is_int8 ? attend<int8_t>(args, index, scratch)
                            : attend<BFloat16>(args, index, scratch);
}

DecodePlan amx_attention_decode_plan(const DecodeShape& shape) {
  Scratch counter(nullptr);
  const Room<float> room(shape, counter);
  const Tiling tiling(shape, Cut(shape), counter);
  return {0, tiling.columns, counter.bytes()};
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX512F__
