// Attention in bfloat16 by its own products. What a task is, and the order of the sums, is as in attention.cpp; the
// shares of the keys are rounded to bfloat16 before they meet the values.

#include "amx_pack.h"
#include "powers.h"

#if defined(__AVX512F__)

#include "division.h"
#include "softmax.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

// Keys that are packed at a time, and the rows that meet them at a time: scores and shares of these
// stay in the first-level cache, keys and values in the second.
constexpr int64_t kSomeKeys = 256;
constexpr int64_t kSomeRows = 32;
constexpr int64_t kFloats = sum_stride(kSomeKeys);   // between rows of scores
constexpr int64_t kShares = step_stride(kSomeKeys);  // and of shares

// What a task has in scratch memory. Row r is position r % positions of head r / positions.
struct Task {
  int64_t q_stride;
  int64_t v_stride;    // of values
  int64_t sum_stride;  // of results
  int64_t v_size;      // whole pairs of tiles
  BFloat16* q;
  float* sums;   // rows of the result, before the division by `total`
  float* peak;   // the largest exponent of each row
  float* total;  // its sum of powers
  Range* seen;
  bool* spoilt;  // rows that see a value that is not finite
  BFloat16* rows;
  BFloat16* k;
  BFloat16* v;
  float* scores;
  BFloat16* shares;
  bool marks[kSomeKeys];

  Task(const AttentionShape& shape, const Division& division, Scratch& scratch) {
    const int64_t count = up_to_multiple(division.heads * division.positions, kSomeRows);
    q_stride = step_stride(shape.size);
    v_stride = step_stride(shape.value_size);
    v_size = up_to_multiple(shape.value_size, kPair);
    sum_stride = FUSEWHEEL_ISA::sum_stride(v_size);
    q = scratch.take<BFloat16>(count * q_stride);
    sums = scratch.take<float>(count * sum_stride);
    peak = scratch.take<float>(count);
    total = scratch.take<float>(count);
    seen = scratch.take<Range>(count);
    spoilt = scratch.take<bool>(count);
    rows = scratch.take<BFloat16>(kSomeKeys * (q_stride > v_stride ? q_stride : v_stride));
    k = scratch.take<BFloat16>(kSomeKeys * q_stride);
    v = scratch.take<BFloat16>(kSomeKeys * v_stride);
    scores = scratch.take<float>(kSomeRows * kFloats);
    shares = scratch.take<BFloat16>(kSomeRows * kShares);
  }
};

// Makes shares of scores, columns [begin, end) of `rows` rows: powers relative to the largest so far.
// Totals and sums become relative to it too.
FUSEWHEEL_AMX void powers(const float* all, int64_t rows, int64_t begin, int64_t end, float factor,
                          const Progress<float>& progress, BFloat16* shares) {
  for (int64_t i = 0; i < rows; i += kTile) {
    const int live = static_cast<int>(rows - i < kTile ? rows - i : kTile);
    const float* scores = all + i * kFloats;
    Vec<float> parts[kTile];
    for (int lane = 0; lane < kTile; ++lane) {
      Vec<float> largest = splat(kNothing<float>);
      for (int64_t j = begin; lane < live && j < end; j += kTile) {
        const Vec<float> value = load(scores + lane * kFloats + j);
        largest = value > largest ? value : largest;
      }
      parts[lane] = largest;
    }
    float* peaks = progress.peaks + i;
    float* totals = progress.totals + i;
    const Vec<float> found = maxima_of<float>(parts) * factor;
    const Vec<float> old = load(peaks);
    const Vec<float> peak = found > old ? found : old;
    // Where no key is seen yet, anything finite will do.
    const Vec<float> base = peak == kNothing<float> ? Vec<float>{} : peak;
    const Vec<float> shrinks = exp2(old - base);
    for (int lane = 0; lane < kTile; ++lane) {
      Vec<float> total[2] = {};
      for (int64_t j = begin; lane < live && j < end; j += kPair) {
        const float* at = scores + lane * kFloats + j;
        const Vec<float> low = exp2(load(at) * factor - base[lane]);
        const Vec<float> high = exp2(load(at + kTile) * factor - base[lane]);
        total[0] += low;
        total[1] += high;
        _mm512_storeu_si512(shares + (i + lane) * kShares + j, rounded(low, high));
      }
      parts[lane] = total[0] + total[1];
    }
    store(peaks, peak);
    store(totals, load(totals) * shrinks + sums_of<float>(parts));
    for (int lane = 0; lane < live; ++lane) {
      const float shrink = shrinks[lane];
      if (shrink != 1) {
        float* sums = progress.sums + (i + lane) * progress.stride;
        for (int64_t j = 0; j < progress.stride; j += kTile) {
          store(sums + j, load(sums + j) * shrink);
        }
      }
    }
  }
}

// The sink of a head: its exponent, and its power relative to the rounded exponent.
struct Sink {
  float value = kNothing<float>;
  float peak = kNothing<float>;
  float total = 0;

  Sink(const AttentionArgs& args, int64_t head) {
    if (args.sinks.data != nullptr) {
      value = load(static_cast<const BFloat16*>(args.sinks.data) + head, 1)[0];
      peak = static_cast<float>(value * kLog2E);
      const double left = static_cast<double>(value) - peak * kLn2;
      total = left == left ? static_cast<float>(__builtin_exp(left)) : 1.0f;
      total = value == kNothing<float> ? 0.0f : total;
    }
  }
};

// Packs a block of keys and their values; rows up to `whole_keys` that are no keys are zeros. Returns
// whether all values are finite.
FUSEWHEEL_AMX bool pack(const AttentionArgs& args, const Place& place, int64_t key, int64_t keys,
                        int64_t whole_keys, Task& task) {
  const auto& shape = args.shape;
  const Head k = head_of(args.k, shape.dtype, place.batch, place.kv_head, shape.size);
  const Head v = head_of(args.v, shape.dtype, place.batch, place.kv_head, shape.value_size);
  copy_rows(k, key, keys, whole_keys, task.rows, task.q_stride);
  columns_of_rows(task.rows, task.q_stride, whole_keys, up_to_multiple(shape.size, kStep), task.k);
  const bool finite = copy_rows(v, key, keys, whole_keys, task.rows, task.v_stride);
  if (!finite) {
    clean_rows(task.rows, keys, task.v_stride, task.marks);
  }
  columns_of_columns(task.rows, task.v_stride, whole_keys, task.v_size, task.v,
                     whole_keys * kTile);
  return finite;
}

FUSEWHEEL_AMX void attend(const AttentionArgs& args, int64_t index, void* memory) {
  const auto& shape = args.shape;
  const Division division(shape, kSomeRows);
  Scratch scratch(memory);
  Task task(shape, division, scratch);
  const Exponent exponent(args);
  const Place place(shape, division, index);
  const int64_t batch = place.batch, first_head = place.first_head, heads = place.heads;
  const int64_t first = place.first, positions = place.positions;
  const int64_t rows = heads * positions;
  const int64_t padded = up_to_multiple(rows, kTile);
  const Queries queries = {batch, first_head, first, positions};

  for (int64_t h = 0; h < heads; ++h) {
    const int64_t own = h * positions;
    const Head q = head_of(args.q, shape.dtype, batch, first_head + h, shape.size);
    copy_rows(q, first, positions, h + 1 < heads ? positions : padded - own,
              task.q + own * task.q_stride, task.q_stride);
    const Sink sink(args, first_head + h);
    for (int64_t i = 0; i < positions; ++i) {
      task.peak[own + i] = sink.peak;
      task.total[own + i] = sink.total;
      task.seen[own + i] = seen_by(shape, first + i);
      task.spoilt[own + i] = false;
    }
  }
  __builtin_memset(task.sums, 0, padded * task.sum_stride * sizeof(float));

  const int64_t depth = up_to_multiple(shape.size, kStep);
  const int64_t last = seen_by(shape, first + positions - 1).end;
  for (int64_t key = task.seen[0].begin / kSomeKeys * kSomeKeys; key < last; key += kSomeKeys) {
    const int64_t keys = shape.keys - key < kSomeKeys ? shape.keys - key : kSomeKeys;
    const int64_t whole_keys = up_to_multiple(keys, kStep);
    bool packed = false;
    bool finite = true;
    for (int64_t row = 0; row < rows; row += kSomeRows) {
      const int64_t some = rows - row < kSomeRows ? rows - row : kSomeRows;
      const Seen seen = seen_in(task.seen + row, some);
      const Meeting met = meeting_of(args, queries, row, some, seen, key, keys, kPair);
      if (met.begin == met.end) {
        continue;
      }
      if (!packed) {
        finite = pack(args, place, key, keys, whole_keys, task);
        packed = true;
      }
      const int64_t begin = met.begin;
      const int64_t end = met.end;
      const int64_t tile_rows = up_to_multiple(some, kTile);
      const Columns columns{task.k, depth * kTile};
      const Columns values{task.v, whole_keys * kTile};
      product(task.q + row * task.q_stride, task.q_stride, tile_rows, columns.at(begin, 0),
                  end - begin, depth, task.scores + begin, kFloats, false);
      const bool plain = met.whole && !met.biased && finite && !exponent.natural;
      for (int64_t i = 0; !plain && i < some; ++i) {
        float* scores = task.scores + i * kFloats;
        const void* bias = met.biased ? queries.bias(args, row + i) : nullptr;
        exponent.apply(scores, begin, end);
        finish_row<float>(args, bias, key, task.seen[row + i], begin, end, scores, nullptr);
        if (!finite && sees_marked(task.marks, scores, begin, end < keys ? end : keys)) {
          task.spoilt[row + i] = true;
        }
      }
      float* sums = task.sums + row * task.sum_stride;
      powers(task.scores, some, begin, end, exponent.factor,
             {task.peak + row, task.total + row, sums, task.sum_stride}, task.shares);
      product(task.shares + begin, kShares, tile_rows, values.at(0, begin), task.v_size,
                  end - begin, sums, task.sum_stride, true);
    }
  }

  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = first_head + row / positions;
    const int64_t query = first + row % positions;
    const float total = task.total[row];
    const bool none = total == 0;
    const auto& strides = args.out.strides;
    BFloat16* out = static_cast<BFloat16*>(args.out.data) + batch * strides[0] +
                    head * strides[1] + query * strides[2];
    const float factor = task.spoilt[row] ? __builtin_nanf("") : 1.0f;
    for (int64_t j = 0; j < shape.value_size; j += kTile) {
      const int64_t live = shape.value_size - j < kTile ? shape.value_size - j : kTile;
      const Vec<float> value = load(task.sums + row * task.sum_stride + j);
      store(out + j, none ? Vec<float>{} : value / total * factor, live);
    }
    const Sink sink(args, head);
    const bool alone = task.peak[row] == sink.peak && total == sink.total;
    const double found = static_cast<double>(task.peak[row]) * kLn2 +
                         __builtin_log(static_cast<double>(total));
    row_values<float>(args.logsumexp, shape, batch, head)[query] =
        none ? kNothing<float> : alone ? sink.value : static_cast<float>(found);
  }
}

}  // namespace

AttentionPlan bfloat16_attention_plan(const AttentionShape& shape) {
  const Division division(shape, kSomeRows);
  Scratch counter(nullptr);
  const Task task(shape, division, counter);
  return {division.tasks(shape), counter.bytes()};
}

FUSEWHEEL_AMX void bfloat16_attention_task(const AttentionArgs& args, int64_t index,
                                           void* scratch) {
  if (choices().amx) {
    const Tiles tiles;
    return attend(args, index, scratch);
  }
  attend(args, index, scratch);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

#endif  // __AVX512F__
