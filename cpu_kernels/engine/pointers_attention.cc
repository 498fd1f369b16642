// Rotary embeddings and attention of one query, with pointers.

#include <fusewheel/attention/attention_decode.h>
#include <fusewheel/rotary/rope_args.h>

#include <cmath>

#include "attention/decode.h"
#include "call.h"
#include "dtypes.h"
#include "pointers.h"
#include "seen_keys.h"

namespace fusewheel::engine {

namespace {

// Of rows with contiguous elements, [batch, heads, rows, size].
bool has_heads(const Layout& layout) {
  return layout.rank == 4 && layout.numel > 0 && (layout.sizes[3] == 1 || layout.strides[3] == 1);
}

bool same_dtype(const Call& call, const Step& step, size_t count, int32_t number) {
  bool same = true;
  for (size_t i = 0; i < count; ++i) {
    same = same && call.dtype_of(step.value(i)) == number;
  }
  for (const uint32_t result : step.results) {
    same = same && result != kUnused && call.dtype_of(result) == number;
  }
  return same;
}

// A table [length, rotated], or for each sequence one or the same one.
bool read_table(const Layout& table, const RopeArgs& args, int64_t* strides) {
  const int64_t lead = table.rank - 2;
  if ((lead != 0 && lead != 1) || table.sizes[lead] != args.length ||
      table.sizes[lead + 1] != args.rotated || table.strides[lead + 1] != 1) {
    return false;
  }
  const bool batched = lead == 1 && table.sizes[0] != 1;
  strides[0] = batched ? table.strides[0] : 0;
  strides[1] = table.strides[lead];
  return !batched || table.sizes[0] == args.batch;
}

}  // namespace

bool rope_with_pointers(Call& call, const Step& step) {
  RopeArgs args = {};
  const int32_t number = call.dtype_of(step.value(0));
  if (step.has(5) || !find_dtype(number, args.dtype) || !same_dtype(call, step, 4, number)) {
    return false;
  }
  const Layout q = call.layout_of(step.value(0));
  for (int i = 0; i < 2; ++i) {
    const Layout in = call.layout_of(step.value(i));
    const Layout out = call.layout_of(step.results[i]);
    if (!has_heads(in) || !has_heads(out) || !out.has_shape_of(in) || in.sizes[0] != q.sizes[0] ||
        in.sizes[2] != q.sizes[2] || in.sizes[3] != q.sizes[3]) {
      return false;
    }
    args.tensors[i].heads = in.sizes[1];
    std::copy(in.strides, in.strides + 3, args.tensors[i].in_strides);
    std::copy(out.strides, out.strides + 3, args.tensors[i].out_strides);
  }
  args.batch = q.sizes[0];
  args.length = q.sizes[2];
  args.size = q.sizes[3];
  args.row_count = args.length;
  args.interleaved = step.arguments[4].integers[0] != 0;
  const Layout cos = call.layout_of(step.value(2));
  const Layout sin = call.layout_of(step.value(3));
  args.rotated = cos.last_size();
  if (args.rotated > args.size || args.rotated % 2 != 0 ||
      !read_table(cos, args, args.cos_strides) || !read_table(sin, args, args.sin_strides)) {
    return false;
  }
  args.cos = call.data_of(step.value(2));
  args.sin = call.data_of(step.value(3));
  for (int i = 0; i < 2; ++i) {
    args.tensors[i].in = call.data_of(step.value(i));
    args.tensors[i].out = call.memory_for(step.results[i], call.layout_of(step.results[i]));
  }
  rope_launch(args, nullptr);
  return true;
}

namespace {

// Attention of one query; the keys and values may be those of fewer heads. The heads that share them may
// also come as queries of one head if there is a mask, which is the same for all.
bool attend(Call& call, const Step& step, const SeenKeys* seen, size_t scale) {
  Dtype dtype;
  const int32_t number = call.dtype_of(step.value(0));
  const Layout q = call.layout_of(step.value(0));
  const Layout k = call.layout_of(step.value(1));
  const Layout v = call.layout_of(step.value(2));
  if (!find_dtype(number, dtype) || !same_dtype(call, step, 3, number) || !has_heads(q) ||
      !has_heads(k) || !has_heads(v) || q.sizes[0] != k.sizes[0] || q.sizes[3] != k.sizes[3] ||
      q.sizes[1] % k.sizes[1] != 0 || !std::equal(v.sizes, v.sizes + 3, k.sizes)) {
    return false;
  }
  const int64_t queries = q.sizes[2];
  if (queries > 1 && (seen == nullptr || q.sizes[1] != k.sizes[1] ||
                      (q.sizes[1] > 1 && q.strides[1] != queries * q.strides[2]))) {
    return false;
  }
  const int64_t heads = q.sizes[1] * queries;
  const Layout out = call.layout_of(step.results[0]);
  const int64_t expected[] = {q.sizes[0], q.sizes[1], queries, v.sizes[3]};
  if (out.rank != 4 || !std::equal(expected, expected + 4, out.sizes) || !out.is_contiguous()) {
    return false;
  }
  DecodeArgs args = {};
  args.q = call.data_of(step.value(0));
  args.q_strides[0] = q.strides[0];
  args.q_strides[1] = q.strides[queries > 1 ? 2 : 1];
  args.k = {call.data_of(step.value(1)), k.strides[0], k.strides[2], k.strides[1]};
  args.v = {call.data_of(step.value(2)), v.strides[0], v.strides[2], v.strides[1]};
  args.entries = 1;
  args.page_size = k.sizes[2];
  args.shape = {q.sizes[0], heads, k.sizes[1], 1, q.sizes[3], v.sizes[3], -1,
                step.has(scale) ? step.arguments[scale].number
                                : 1 / std::sqrt(static_cast<double>(q.sizes[3])),
                0, dtype, dtype, false, 1};
  args.shape.task_heads = heads_of_task(args, false);
  std::vector<int64_t> lengths;
  std::vector<int32_t> pages;
  if (seen != nullptr) {
    if (!seen->find_pages(args, pages)) {
      return false;
    }
    args.table = pages.data();
    args.lengths = seen->counts();
  } else {
    lengths.assign(static_cast<size_t>(k.sizes[0]), k.sizes[2]);
    args.lengths = lengths.data();
  }
  Decode decode(args);
  const int64_t sums = decode.bytes();  // whole lines
  const int64_t rows = q.sizes[0] * heads;
  auto* memory = static_cast<char*>(call.scratch(sums + rows * sizeof(float)));
  args.logsumexp = memory + sums;
  args.out = call.memory_for(step.results[0], out);
  decode.run(memory);
  return true;
}

}  // namespace

bool attention_with_pointers(Call& call, const Step& step) {
  return attend(call, step, nullptr, 3);
}

bool masked_attention_with_pointers(Call& call, const Step& step) {
  const Layout k = call.layout_of(step.value(1));
  const uint32_t mask = step.value(3);
  SeenKeys seen;
  return k.rank == 4 && call.dtype_of(mask) == aoti_torch_dtype_bool() &&
         seen.read(static_cast<const uint8_t*>(call.data_of(mask)), call.layout_of(mask), k.sizes[0],
                   k.sizes[2]) &&
         attend(call, step, &seen, 4);
}

}  // namespace fusewheel::engine
