#include "decode.h"

#include <utility>

#include "decode_tasks.h"
#include "in_turn.h"

namespace fusewheel {

using FUSEWHEEL_ISA::first_key;
using FUSEWHEEL_ISA::kGrain;
using FUSEWHEEL_ISA::parallel_for;

namespace {

// Numbers, at least a cache line.
constexpr int64_t kLine = 64;

// What tasks hand on lies in one piece of memory: with few keys an allocation takes as long as a task.
// Where a piece of it begins, and how many numbers it has.
using Piece = std::pair<void**, int64_t>;

void list_pieces(DecodeArgs& args, int64_t part_count, Piece* pieces) {
  const auto& shape = args.shape;
  const int64_t rows = shape.heads * shape.queries;
  pieces[0] = {&args.prepared, shape.batch * rows * args.plan.stride};
  pieces[1] = {&args.peaks, part_count * rows};
  pieces[2] = {&args.totals, part_count * rows};
  pieces[3] = {&args.sums, part_count * rows * args.plan.value_stride};
}

constexpr int kPieces = 4;

int64_t whole_lines(int64_t count) { return (count + kLine - 1) / kLine * kLine; }

int64_t number_size(const DecodeArgs& args) { return args.shape.dtype == Dtype::kFloat64 ? 8 : 4; }

}  // namespace

Decode::Decode(DecodeArgs& args) : args_(args) {
  // Of each sequence, how many parts all sequences before it have.
  first_part_.push_back(0);
  for (int64_t i = 0; i < args.shape.batch; ++i) {
    const int64_t begin = first_key(args.shape, args.lengths[i], 0) / kDecodePart;
    const int64_t end = (args.lengths[i] + kDecodePart - 1) / kDecodePart;
    first_part_.push_back(first_part_.back() + end - begin);
  }
  args.first_part = first_part_.data();
  args.plan = FUSEWHEEL_SELECT(attention_decode_plan)(args.shape);
}

int64_t Decode::bytes() const {
  Piece pieces[kPieces];
  list_pieces(args_, part_count(), pieces);
  int64_t numbers = 0;
  for (const auto& [place, count] : pieces) {
    numbers += whole_lines(count);
  }
  return numbers * number_size(args_);
}

void Decode::run(void* memory) {
  auto& args = args_;
  const auto& shape = args.shape;
  Piece pieces[kPieces];
  list_pieces(args, part_count(), pieces);
  char* start = static_cast<char*>(memory);
  for (const auto& [place, count] : pieces) {
    *place = start;
    start += whole_lines(count) * number_size(args);
  }
  const int64_t rows = shape.batch * shape.heads * shape.queries;
  const int64_t unprepared = args.plan.stride == 0 ? 0 : rows;
  parallel_for(unprepared, kGrain / (args.plan.stride + 1) + 1, [&](int64_t begin, int64_t end) {
    FUSEWHEEL_SELECT(attention_decode_prepare)(args, begin, end);
  });
  const auto task = FUSEWHEEL_SELECT(attention_decode_task);
  const int64_t tasks = part_count() * (shape.kv_heads / shape.task_heads);
  in_turn(Tasks{tasks, args.plan.scratch_bytes},
          [&](int64_t index, void* scratch) { task(args, index, scratch); });
  const int64_t numbers = part_count() * args.plan.value_stride / shape.batch;
  parallel_for(rows, kGrain / (numbers + 1) + 1, [&](int64_t begin, int64_t end) {
    FUSEWHEEL_SELECT(attention_decode_merge)(args, begin, end);
  });
}

}  // namespace fusewheel
