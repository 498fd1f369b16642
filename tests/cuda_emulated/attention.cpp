// The device parts of attention over buffers of the exact size, as in kernels.cpp.

#include <fusewheel/attention/attention_varlen_args.h>

#include <cstring>
#include <vector>

#include "buffer.h"

namespace {

using namespace fusewheel;

struct Case {
  int64_t heads;
  int64_t kv_heads;
  int64_t queries;
  int64_t keys;
  int64_t size;
  int64_t value_size;
  int64_t left;
  int64_t right;
  int64_t gap;      // between rows
  int64_t skipped;  // before the first element
  double softcap;
  bool with_bias;
  bool is_mask;
  bool with_sinks;
};

constexpr Case kCases[] = {
    {1, 1, 1, 1, 1, 1, -1, -1, 0, 0, 0, false, false, false},
    {2, 1, 65, 67, 40, 8, -1, 0, 0, 0, 0, true, true, true},
    {1, 1, 70, 130, 33, 64, 3, 5, 5, 1, 2, true, false, false},
    {3, 3, 130, 64, 8, 131, -1, 0, 8, 0, 0, false, false, true},
    {1, 1, 3, 70, 150, 4, 20, -1, 0, 1, 0, false, false, false},
    {2, 2, 5, 0, 4, 4, -1, -1, 0, 0, 0, false, false, true},
    {2, 1, 0, 5, 4, 4, -1, -1, 0, 0, 0, false, false, true},
    {1, 1, 5, 7, 0, 0, -1, -1, 0, 0, 0, false, false, true},
    // For tensor cores, in half types.
    {2, 1, 70, 130, 128, 72, -1, 0, 8, 0, 0, false, false, true},
    {1, 1, 130, 65, 16, 64, 3, 70, 24, 0, 0, true, false, false},
};

// Buffers that live as long as a call.
class Memory {
 public:
  Memory(const Case& shape, Dtype dtype) : shape_(shape), dtype_(dtype) {}

  // [1, heads, rows, size]; results begin as NaN, and have no gaps.
  View rows(int64_t heads, int64_t rows, int64_t size, bool result) {
    const int64_t pitch = size + (result ? 0 : shape_.gap);
    const int64_t count = heads * rows == 0 ? 0 : (heads * rows - 1) * pitch + size;
    return {take(count, size_of(dtype_), result), {0, rows * pitch, pitch, 1}};
  }

  void* take(int64_t count, int64_t size, bool result) {
    buffers_.emplace_back(count, size, result ? 0 : shape_.skipped, result ? 0xff : 0);
    sizes_.push_back(result ? size : 0);
    return buffers_.back().data();
  }

  void expect_written(const char* what) const {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      if (sizes_[i] > 0) {
        buffers_[i].expect_written(sizes_[i], what);
      }
    }
  }

 private:
  Case shape_;
  Dtype dtype_;
  std::vector<Buffer> buffers_;
  std::vector<int64_t> sizes_;  // of an element of a result
};

AttentionArgs arguments(const Case& c, Dtype dtype, bool result, Memory& memory) {
  AttentionArgs args{};
  args.shape = {1,         c.heads, c.kv_heads, c.queries, c.keys,    c.size, c.value_size,
                c.queries, c.left,  c.right,    1.0,       c.softcap, dtype,  c.is_mask};
  args.q = memory.rows(c.heads, c.queries, c.size, false);
  args.k = memory.rows(c.kv_heads, c.keys, c.size, false);
  args.v = memory.rows(c.kv_heads, c.keys, c.value_size, false);
  if (c.with_sinks) {
    args.sinks = {memory.take(c.heads, size_of(dtype), false), {0, 1, 0, 0}};
  }
  if (c.with_bias) {  // the same for every head
    const int64_t size = c.is_mask ? 1 : size_of(dtype);
    args.bias = {memory.take(c.queries * c.keys, size, false), {0, 0, c.keys, 1}};
  }
  args.out = memory.rows(c.heads, c.queries, c.value_size, result);
  const int64_t wide = accumulate_size_of(dtype);
  args.logsumexp = memory.take(c.heads * c.queries, wide, result);
  return args;
}

void forward(const Case& c, Dtype dtype) {
  Memory memory(c, dtype);
  AttentionArgs args = arguments(c, dtype, true, memory);
  args.scratch = memory.take(attention_scratch_bytes(args.shape), 1, false);
  attention_launch(args, nullptr);
  memory.expect_written("attention");
}

AttentionBackwardArgs backward_arguments(const Case& c, Dtype dtype, Memory& memory) {
  const int64_t wide = accumulate_size_of(dtype);
  const int64_t queries = c.heads * c.queries;
  AttentionBackwardArgs args{};
  args.forward = arguments(c, dtype, false, memory);
  args.grad = memory.rows(c.heads, c.queries, c.value_size, false);
  args.grad_logsumexp = {memory.take(queries, wide, false), {0, c.queries, 1, 0}};
  args.grad_q = memory.rows(c.heads, c.queries, c.size, true);
  args.grad_k = memory.rows(c.kv_heads, c.keys, c.size, true);
  args.grad_v = memory.rows(c.kv_heads, c.keys, c.value_size, true);
  args.delta = memory.take(queries, wide, true);
  if (c.with_sinks) {
    args.grad_sinks = memory.take(c.heads, size_of(dtype), true);
    args.dots = memory.take(queries, wide, true);
  }
  return args;
}

void backward(const Case& c, Dtype dtype) {
  Memory memory(c, dtype);
  attention_backward_launch(backward_arguments(c, dtype, memory), nullptr);
  memory.expect_written("attention_backward");
}

// Packed sequences of 70 queries and 130 keys in all; the last three of these bounds are wrong.
struct Bounded {
  std::vector<int64_t> queries;
  std::vector<int64_t> keys;
};

const Bounded kBounds[] = {
    {{0, 70}, {0, 130}},
    {{0, 3, 3, 70}, {0, 0, 65, 130}},
    {{0, 70, 1, 70}, {0, 9, 40, 130}},
    {{0, 35, 70}, {0, INT64_MAX, 130}},
    {{0}, {INT64_MIN}},
};

Bounds numbers(const std::vector<int64_t>& values, Memory& memory) {
  const auto count = static_cast<int64_t>(values.size());
  void* data = memory.take(count, 8, false);
  std::memcpy(data, values.data(), values.size() * 8);
  return {data, 1, true};
}

Packing packing(const Bounded& bounds, Memory& memory) {
  const auto count = static_cast<int64_t>(bounds.queries.size()) - 1;
  return {count, nullptr, numbers(bounds.queries, memory), numbers(bounds.keys, memory),
          memory.take(packing_scratch_bytes(count), 1, false)};
}

void packed(const Bounded& bounds, Dtype dtype, int64_t size) {
  const Case c{2, 1, 70, 130, size, 24, 33, 0, 0, 0, 0, false, false, true};
  Memory memory(c, dtype);
  AttentionVarlenArgs args{arguments(c, dtype, true, memory), packing(bounds, memory)};
  args.all.scratch = memory.take(attention_scratch_bytes(args.all.shape), 1, false);
  attention_varlen_launch(args, nullptr);
  memory.expect_written("attention_varlen");
  Memory gradients(c, dtype);
  const AttentionVarlenBackwardArgs backward{backward_arguments(c, dtype, gradients),
                                             packing(bounds, gradients)};
  attention_varlen_backward_launch(backward, nullptr);
  gradients.expect_written("attention_varlen_backward");
}

}  // namespace

int main() {
  for (const Dtype dtype : kDtypes) {
    for (const Case& c : kCases) {
      forward(c, dtype);
      backward(c, dtype);
    }
    for (const Bounded& bounds : kBounds) {
      packed(bounds, dtype, 9);
      packed(bounds, dtype, 16);  // for tensor cores, in half types
    }
  }
}
