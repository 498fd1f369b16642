// Attention: the result of a query grows with each block of keys
//
// A task is some queries of all heads that read the same keys, so that these are packed once for all of
// them. What a task computes depends on the shapes alone: the same bits for any number of threads.

#include "amx.h"
#include "division.h"
#include "softmax.h"

namespace fusewheel::FUSEWHEEL_ISA {
namespace {

// The rows of a tile at the edge of what is seen: a task has a multiple of these.
constexpr int64_t kDivided = kEdgeRows;

// What a task has in scratch memory. Row r is position r % positions of head r / positions.
template <typename A>
struct Task {
  int64_t q_stride;
  int64_t v_stride;
  A* q;       // rows, scaled
  A* sums;    // rows of the result, before the division by `total`
  A* peak;    // the largest score of each row
  A* total;   // its sum of exponentials
  Range* seen;
  bool* spoilt;  // rows that see a value that is not finite
  A* k;          // rows, then
  A* panels;     // turned
  A* v;
  A* scores;
  bool marks[kKeys];

  Task(const AttentionShape& shape, const Division& division, Scratch& scratch) {
    const int64_t rows = up_to_multiple(division.heads * division.positions, kRows);
    q_stride = row_stride<A>(shape.size);
    v_stride = row_stride<A>(shape.value_size);
    q = scratch.take<A>(rows * q_stride);
    sums = scratch.take<A>(rows * v_stride);
    peak = scratch.take<A>(rows);
    total = scratch.take<A>(rows);
    seen = scratch.take<Range>(rows);
    spoilt = scratch.take<bool>(rows);
    k = scratch.take<A>(kKeys * q_stride);
    panels = scratch.take<A>(kKeys * q_stride);
    v = scratch.take<A>(kKeys * v_stride);
    scores = scratch.take<A>(kRows * kScoreStride<A>);
  }
};

// Packs a block of keys and their values; rows that are no keys are zeros. Returns whether all values
// are finite.
template <typename A>
bool pack(const AttentionArgs& args, const Place& place, int64_t key, int64_t keys,
          Task<A>& task) {
  const auto& shape = args.shape;
  const Head k = head_of(args.k, shape.dtype, place.batch, place.kv_head, shape.size);
  const Head v = head_of(args.v, shape.dtype, place.batch, place.kv_head, shape.value_size);
  load_rows<A>(k, key, keys, A{1}, task.k, task.q_stride);
  load_rows<A>(v, key, keys, A{1}, task.v, task.v_stride);
  const bool finite = is_finite(task.v, keys, task.v_stride);
  if (!finite) {
    clean_rows(task.v, keys, task.v_stride, task.marks);
  }
  for (int64_t i = keys * task.q_stride; i < kKeys * task.q_stride; ++i) {
    task.k[i] = 0;
  }
  for (int64_t i = keys * task.v_stride; i < kKeys * task.v_stride; ++i) {
    task.v[i] = 0;
  }
  turn(task.k, task.q_stride, shape.size, task.panels);
  return finite;
}

template <typename A>
void attend(const AttentionArgs& args, int64_t index, void* memory) {
  const auto& shape = args.shape;
  const Division division(shape, kDivided);
  Scratch scratch(memory);
  Task<A> task(shape, division, scratch);
  const Place place(shape, division, index);
  const int64_t batch = place.batch, first_head = place.first_head, heads = place.heads;
  const int64_t first = place.first, positions = place.positions;
  const int64_t rows = heads * positions;
  const Queries queries = {batch, first_head, first, positions};

  for (int64_t h = 0; h < heads; ++h) {
    const Head q = head_of(args.q, shape.dtype, batch, first_head + h, shape.size);
    load_rows<A>(q, first, positions, static_cast<A>(shape.scale),
                 task.q + h * positions * task.q_stride, task.q_stride);
    A sink = kNothing<A>;
    if (args.sinks.data != nullptr) {
      A row[kLanes<A>];
      load_rows<A>(head_of(args.sinks, shape.dtype, 0, first_head + h, 1), 0, 1, A{1}, row,
                   kLanes<A>);
      sink = row[0];
    }
    for (int64_t i = 0; i < positions; ++i) {
      const int64_t row = h * positions + i;
      task.peak[row] = sink;
      task.total[row] = sink == kNothing<A> ? A{0} : A{1};
      task.seen[row] = seen_by(shape, first + i);
      task.spoilt[row] = false;
    }
  }
  const int64_t padded = up_to_multiple(rows, kFewRows);
  for (int64_t i = rows * task.q_stride; i < padded * task.q_stride; ++i) {
    task.q[i] = 0;
  }
  for (int64_t i = 0; i < padded * task.v_stride; ++i) {
    task.sums[i] = 0;
  }

  const int64_t last = seen_by(shape, first + positions - 1).end;
  for (int64_t key = task.seen[0].begin / kKeys * kKeys; key < last; key += kKeys) {
    const int64_t keys = shape.keys - key < kKeys ? shape.keys - key : kKeys;
    bool packed = false;
    bool finite = true;
    int64_t some;
    for (int64_t row = 0; row < rows; row += some) {
      some = rows - row < kRows ? rows - row : kRows;
      Seen seen = seen_in(task.seen + row, some);
      if (!seen.is_whole(key, keys) && some > kEdgeRows) {
        some = kEdgeRows;
        seen = seen_in(task.seen + row, some);
      }
      const Meeting met = meeting_of(args, queries, row, some, seen, key, keys, kPanel<A>);
      if (met.begin == met.end) {
        continue;
      }
      if (!packed) {
        finite = pack(args, place, key, keys, task);
        packed = true;
      }
      const int64_t begin = met.begin;
      const int64_t end = met.end;
      const int64_t tile_rows = up_to_multiple(some, kFewRows);
      products_of(task.q + row * task.q_stride, task.q_stride, tile_rows, task.panels, shape.size,
                  begin, end, task.scores);
      for (int64_t i = 0; i < some; ++i) {
        const void* bias = met.biased ? queries.bias(args, row + i) : nullptr;
        A* scores = task.scores + i * kScoreStride<A>;
        if (!met.whole || met.biased || shape.softcap > 0) {
          finish_row<A>(args, bias, key, task.seen[row + i], begin, end, scores, nullptr);
        }
        if (!finite && sees_marked(task.marks, scores, begin, end < keys ? end : keys)) {
          task.spoilt[row + i] = true;
        }
      }
      A* sums = task.sums + row * task.v_stride;
      exponentials<A>(task.scores, some, begin, end,
                      {task.peak + row, task.total + row, sums, task.v_stride});
      product<A, false>(task.scores + begin, kScoreStride<A>, tile_rows,
                        task.v + begin * task.v_stride, task.v_stride, kPanel<A>,
                        panels_of<A>(shape.value_size), end - begin, sums, task.v_stride, true);
    }
  }

  for_dtype_in<A>(shape.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t head = first_head + row / positions;
      const int64_t query = first + row % positions;
      const A total = task.total[row];
      const bool none = total == 0;
      const auto& strides = args.out.strides;
      T* out = static_cast<T*>(args.out.data) + batch * strides[0] + head * strides[1] +
               query * strides[2];
      const A factor = task.spoilt[row] ? static_cast<A>(__builtin_nanf("")) : 1 / total;
      for_each_vector<A>(shape.value_size, [&](int64_t j, int64_t live) {
        const Vec<A> value = load(task.sums + row * task.v_stride + j);
        store(out + j, none ? Vec<A>{} : value * factor, live);
      });
      row_values<A>(args.logsumexp, shape, batch, head)[query] =
          none ? kNothing<A>
               : static_cast<A>(static_cast<double>(task.peak[row]) +
                                __builtin_log(static_cast<double>(total)));
    }
  });
}

template <typename A>
AttentionPlan plan(const AttentionShape& shape) {
  const Division division(shape, kDivided);
  Scratch counter(nullptr);
  const Task<A> task(shape, division, counter);
  return {division.tasks(shape), counter.bytes()};
}

}  // namespace

AttentionPlan attention_plan(const AttentionShape& shape) {
  if constexpr (kHasAmx) {
    if (multiplies_bfloat16(shape)) {
      return bfloat16_attention_plan(shape);
    }
  }
  return shape.dtype == Dtype::kFloat64 ? plan<double>(shape) : plan<float>(shape);
}

void attention_task(const AttentionArgs& args, int64_t index, void* scratch) {
  if constexpr (kHasAmx) {
    if (multiplies_bfloat16(args.shape)) {
      return bfloat16_attention_task(args, index, scratch);
    }
  }
  return args.shape.dtype == Dtype::kFloat64 ? attend<double>(args, index, scratch)
                                             : attend<float>(args, index, scratch);
}

}  // namespace fusewheel::FUSEWHEEL_ISA
