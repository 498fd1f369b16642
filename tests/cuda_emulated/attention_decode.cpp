// The device part of attention_decode over buffers of the exact size, as in kernels.cpp.

#include <cstring>
#include <vector>

#include "attention/decode.h"
#include "buffer.h"

namespace {

using namespace fusewheel;

struct Case {
  int64_t heads;
  int64_t kv_heads;
  int64_t queries;
  int64_t size;
  int64_t value_size;
  int64_t left;
  std::vector<int64_t> lengths;
  int64_t page_size;  // of the capacity where there are no pages
  std::vector<int32_t> table;
  int64_t pages;
  bool is_int8;
};

const Case kCases[] = {
    {1, 1, 1, 1, 1, -1, {1}, 1, {}, 1, false},
    {4, 2, 3, 9, 20, 5, {530, 600, 0}, 600, {}, 3, false},
    {8, 1, 2, 24, 33, -1, {530, 64}, 530, {}, 2, true},
    {4, 4, 1, 40, 7, 40, {5, 13, 16}, 4, {1, 2, -1, -1, 0, 3, 1, 2, 3, 2, 1, 0}, 4, true},
    {2, 1, 1, 300, 300, -1, {20}, 7, {1, 2, 0}, 3, false},
    // For tensor cores, in half types.
    {16, 2, 1, 128, 72, -1, {530, 64, 0}, 530, {}, 3, false},
    {10, 1, 2, 40, 64, 5, {13, 16}, 4, {0, 2, 1, 3, 3, 1, 2, 0}, 4, false},
    // Lengths and pages that do not exist.
    {2, 2, 1, 8, 8, -1, {-1, 13, INT64_MAX}, 12, {}, 3, false},
    {2, 1, 1, 8, 8, -1, {8, 8, 8}, 4, {0, 1, 2, 0, -1, 0}, 2, false},
    {2, 1, 1, 8, 8, -1, {1}, 0, {0}, 2, false},
};

template <typename T>
const T* copy(const std::vector<T>& values, std::vector<Buffer>& buffers) {
  if (values.empty()) {
    return nullptr;
  }
  buffers.emplace_back(static_cast<int64_t>(values.size()), sizeof(T), 0, 0);
  std::memcpy(buffers.back().data(), values.data(), values.size() * sizeof(T));
  return static_cast<const T*>(buffers.back().data());
}

void decode(const Case& c, Dtype dtype) {
  std::vector<Buffer> buffers;
  const auto take = [&](int64_t count, int64_t size, int fill) {
    buffers.emplace_back(count, size, 0, fill);
    return buffers.back().data();
  };
  const auto batch = static_cast<int64_t>(c.lengths.size());
  const int64_t wide = accumulate_size_of(dtype);
  const bool paged = !c.table.empty();
  const auto cache = [&](int64_t width, int64_t size) -> Cache {
    const int64_t page = c.kv_heads * c.page_size * width;
    const int64_t key = paged ? c.kv_heads * width : width;
    const int64_t head = paged ? width : c.page_size * width;
    return {take(c.pages * page, size, 0), page, key, head};
  };
  DecodeCall call{};
  auto& args = call.args;
  args.shape = {batch, c.heads, c.kv_heads, c.queries, c.size, c.value_size, c.left,
                1.0,   0.0,     dtype,      dtype,     c.is_int8, 1};
  args.q = take(batch * c.heads * c.queries * c.size, size_of(dtype), 0);
  args.q_strides[0] = c.heads * c.queries * c.size;
  args.q_strides[1] = c.queries * c.size;
  args.q_strides[2] = c.size;
  args.k = cache(c.size, c.is_int8 ? 1 : size_of(dtype));
  args.v = cache(c.value_size, c.is_int8 ? 1 : size_of(dtype));
  if (c.is_int8) {
    args.k_scales = cache(1, wide);
    args.v_scales = cache(1, wide);
  }
  args.table = copy(c.table, buffers);
  args.entries = paged ? static_cast<int64_t>(c.table.size()) / batch : 1;
  args.page_size = c.page_size;
  const int64_t rows = batch * c.heads * c.queries;
  args.out = take(rows * c.value_size, size_of(dtype), 0xff);
  const Buffer out = std::move(buffers.back());
  args.logsumexp = take(rows, wide, 0xff);
  const Buffer logsumexp = std::move(buffers.back());
  call.lengths = copy(c.lengths, buffers);
  call.lengths_stride = 1;
  call.lengths_are_long = true;
  call.pages = c.pages;
  call.parts = (args.entries * c.page_size + kDecodePart - 1) / kDecodePart;
  call.found = take(call.parts * rows * (kPartHead + c.value_size), wide, 0);
  attention_decode_launch(call, nullptr);
  out.expect_written(size_of(dtype), "attention_decode");
  logsumexp.expect_written(wide, "attention_decode");
}

}  // namespace

int main() {
  for (const Dtype dtype : kDtypes) {
    for (const Case& c : kCases) {
      decode(c, dtype);
    }
  }
}
