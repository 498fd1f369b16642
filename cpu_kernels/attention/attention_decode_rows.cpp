// What attention_decode computes for each query before and after it reads the cache

#include "cache.h"
#include "decode_tasks.h"
#include "tiles.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

// A row, in the order of batch, heads and queries.
struct Row {
  int64_t batch;
  int64_t head;
  int64_t query;

  Row(const DecodeShape& shape, int64_t number)
      : batch(number / (shape.heads * shape.queries)),
        head(number / shape.queries % shape.heads),
        query(number % shape.queries) {}
};

// Scaled, in the order of columns that the cache has, zeros behind them.
template <typename A, typename E>
void prepare(const DecodeArgs& args, const Row& row) {
  const auto& shape = args.shape;
  const auto& strides = args.q_strides;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t number =
      ((row.batch * shape.kv_heads + row.head / group) * shape.queries + row.query) * group +
      row.head % group;
  const int64_t from = row.batch * strides[0] + row.head * strides[1] + row.query * strides[2];
  A* to = static_cast<A*>(args.prepared) + number * args.plan.stride;
  for (int64_t column = 0; column < shape.size; column += kPairOf<A>) {
    const int64_t live = shape.size - column < kPairOf<A> ? shape.size - column : kPairOf<A>;
    A plain[kPairOf<A>] = {};
    widen_all(shape.dtype, args.q, from + column, live, plain);
    for (A& value : plain) {
      value *= static_cast<A>(sizeof(E) == 1 ? shape.scale / kCodeRange : shape.scale);
    }
    to_pair<A, E>(plain, to + column);
  }
}

// Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
template <typename A, typename E, typename T>
void merge(const DecodeArgs& args, const Row& row, int64_t number) {
  const auto& shape = args.shape;
  const int64_t stride = args.plan.value_stride;
  const int64_t begin = args.first_part[row.batch];
  const int64_t end = args.first_part[row.batch + 1];
  const auto at = [&](int64_t part) {
    return (part * shape.heads + row.head) * shape.queries + row.query;
  };
  const A* peaks = static_cast<const A*>(args.peaks);
  const A* totals = static_cast<const A*>(args.totals);
  A* all = static_cast<A*>(args.sums);
  A sink = kNothing<A>;
  if (args.sinks != nullptr) {
    widen_all(shape.dtype, args.sinks, row.head, 1, &sink);
  }
  A peak = sink;
  for (int64_t part = begin; part < end; ++part) {
    peak = peaks[at(part)] > peak ? peaks[at(part)] : peak;
  }
  const A base = peak == kNothing<A> ? A{0} : peak;
  const auto shrunk = [&](A value) { return exp(splat(value - base))[0]; };
  A total = sink == kNothing<A> ? A{0} : shrunk(sink);
  A* sums = begin < end ? all + at(begin) * stride : nullptr;
  for (int64_t part = begin; part < end; ++part) {
    const A factor = shrunk(peaks[at(part)]);
    const A* own = all + at(part) * stride;
    total += factor * totals[at(part)];
    for (int64_t column = 0; column < stride; column += kLanes<A>) {
      const Vec<A> value = load(own + column) * factor;
      store(sums + column, part == begin ? value : load(sums + column) + value);
    }
  }
  const bool none = total == 0 || begin == end;
  Vec<A> odd = {};
  for (int64_t column = 0; !none && column < stride; column += kLanes<A>) {
    odd += load(sums + column) * A{0};
  }
  // A value that is not finite spoils all of the result.
  const A spoilt = sum<A>(odd);
  T* out = static_cast<T*>(args.out) + number * shape.value_size;
  for (int64_t column = 0; column < shape.value_size; column += kPairOf<A>) {
    A plain[kPairOf<A>] = {};
    if (!none) {
      from_pair<A, E>(sums + column, plain);
    }
    const int64_t left = shape.value_size - column;
    for_each_vector<A>(left < kPairOf<A> ? left : kPairOf<A>, [&](int64_t j, int64_t live) {
      store(out + column + j, none ? Vec<A>{} : load(plain + j) / total + spoilt, live);
    });
  }
  static_cast<A*>(args.logsumexp)[number] =
      total == 0 ? kNothing<A>
                 : static_cast<A>(static_cast<double>(base) +
                                  __builtin_log(static_cast<double>(total)));
}

}  // namespace

void attention_decode_prepare(const DecodeArgs& args, int64_t begin, int64_t end) {
  for_types(args.shape, [&](auto wide, auto own) {
    for (int64_t number = begin; number < end; ++number) {
      prepare<decltype(wide), decltype(own)>(args, Row(args.shape, number));
    }
  });
}

void attention_decode_merge(const DecodeArgs& args, int64_t begin, int64_t end) {
  for_types(args.shape, [&](auto wide, auto own) {
    for_dtype_in<decltype(wide)>(args.shape.dtype, [&](auto result) {
      for (int64_t number = begin; number < end; ++number) {
        merge<decltype(wide), decltype(own), decltype(result)>(args, Row(args.shape, number),
                                                               number);
      }
    });
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA
