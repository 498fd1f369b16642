// The operator attention_decode on the CPU. Elsewhere PyTorch's operators compute it, so it is not in
// packages/schema/operators/.

#include <fusewheel/attention/attention_decode.h>
#include <fusewheel/kernel.h>

#include <vector>

#include "decode_tasks.h"
#include "in_turn.h"

namespace fusewheel {

using FUSEWHEEL_ISA::first_key;
using FUSEWHEEL_ISA::kGrain;
using FUSEWHEEL_ISA::parallel_for;

namespace {

constexpr const char* kOp = "attention_decode";

std::vector<int64_t> read_lengths(const Tensor& lengths, int64_t capacity) {
  std::vector<int64_t> found;
  for (int64_t i = 0; i < lengths.numel(); ++i) {
    const int64_t at = i * lengths.strides()[0];
    const int64_t length = lengths.scalar_type() == ScalarType::Int
                               ? static_cast<const int32_t*>(lengths.const_data_ptr())[at]
                               : static_cast<const int64_t*>(lengths.const_data_ptr())[at];
    if (length < 0 || length > capacity) {
      fail(kOp, "lengths must be between 0 and " + std::to_string(capacity) +
                    ", the keys that a sequence has room for, got " + std::to_string(length) +
                    " for sequence " + std::to_string(i));
    }
    found.push_back(length);
  }
  return found;
}

// Of each sequence, how many parts all sequences before it have.
std::vector<int64_t> count_parts(const DecodeArgs& args) {
  std::vector<int64_t> found{0};
  for (int64_t i = 0; i < args.shape.batch; ++i) {
    const int64_t begin = first_key(args.shape, args.lengths[i], 0) / kDecodePart;
    const int64_t end = (args.lengths[i] + kDecodePart - 1) / kDecodePart;
    found.push_back(found.back() + end - begin);
  }
  return found;
}

// Those that hold a key that is seen.
void check_pages(const DecodeArgs& args, int64_t pages) {
  for (int64_t i = 0; args.table != nullptr && i < args.shape.batch; ++i) {
    const int64_t length = args.lengths[i];
    const int64_t begin = length == 0 ? 0 : first_key(args.shape, length, 0) / args.page_size;
    const int64_t end = length == 0 ? 0 : (length - 1) / args.page_size + 1;
    for (int64_t entry = begin; entry < end; ++entry) {
      const int64_t page = args.table[i * args.entries + entry];
      if (page < 0 || page >= pages) {
        fail(kOp, "block_table must name pages between 0 and " + std::to_string(pages - 1) +
                      " for the keys of a sequence, got " + std::to_string(page) + " in entry " +
                      std::to_string(entry) + " of sequence " + std::to_string(i));
      }
    }
  }
}

// Memory for what tasks hand on, in one piece: with few keys an allocation takes as long as a task.
Tensor allocate_parts(DecodeArgs& args, int64_t rows, int64_t part_rows, const Tensor& q) {
  constexpr int64_t kLine = 64;  // numbers, at least a cache line
  const std::pair<void**, int64_t> pieces[] = {
      {&args.prepared, rows * args.plan.stride},
      {&args.peaks, part_rows},
      {&args.totals, part_rows},
      {&args.sums, part_rows * args.plan.value_stride},
  };
  int64_t numbers = 0;
  for (const auto& [place, count] : pieces) {
    numbers += (count + kLine - 1) / kLine * kLine;
  }
  const Tensor memory = empty_contiguous({&numbers, 1}, accumulate_type(q), q);
  char* start = static_cast<char*>(memory.mutable_data_ptr());
  for (const auto& [place, count] : pieces) {
    *place = start;
    start += (count + kLine - 1) / kLine * kLine * memory.element_size();
  }
  return memory;
}

std::tuple<Tensor, Tensor> attention_decode(
    const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& lengths,
    const std::optional<Tensor>& block_table, const std::optional<Tensor>& k_scales,
    const std::optional<Tensor>& v_scales, const std::optional<Tensor>& sinks, int64_t left,
    double scale, double softcap) {
  AttentionDecode call(kOp, q, k_cache, v_cache, lengths, block_table, k_scales, v_scales, sinks,
                       left, scale, softcap);
  auto& args = call.args;
  const auto& shape = args.shape;
  const auto found = read_lengths(lengths, args.entries * args.page_size);
  args.lengths = found.data();
  check_pages(args, k_cache.sizes()[0]);
  call.allocate();
  if (call.logsumexp.numel() == 0) {
    return {call.out, call.logsumexp};
  }
  const auto parts = count_parts(args);
  args.first_part = parts.data();
  args.plan = FUSEWHEEL_SELECT(attention_decode_plan)(shape);
  const int64_t rows = shape.batch * shape.heads * shape.queries;
  const int64_t part_rows = parts.back() * shape.heads * shape.queries;
  const Tensor memory = allocate_parts(args, rows, part_rows, q);
  const int64_t unprepared = args.plan.stride == 0 ? 0 : rows;
  parallel_for(unprepared, kGrain / (args.plan.stride + 1) + 1, [&](int64_t begin, int64_t end) {
    FUSEWHEEL_SELECT(attention_decode_prepare)(args, begin, end);
  });
  const auto task = FUSEWHEEL_SELECT(attention_decode_task);
  const int64_t tasks = parts.back() * (shape.kv_heads / shape.task_heads);
  in_turn(Tasks{tasks, args.plan.scratch_bytes},
          [&](int64_t index, void* scratch) { task(args, index, scratch); });
  const int64_t numbers = parts.back() * args.plan.value_stride / shape.batch;
  parallel_for(rows, kGrain / (numbers + 1) + 1, [&](int64_t begin, int64_t end) {
    FUSEWHEEL_SELECT(attention_decode_merge)(args, begin, end);
  });
  return {call.out, call.logsumexp};
}

FUSEWHEEL_KERNELS(library) { kernel<attention_decode>(library, "attention_decode"); }

}  // namespace
}  // namespace fusewheel
