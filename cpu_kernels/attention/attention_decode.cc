// The operator attention_decode on the CPU. Elsewhere PyTorch's operators compute it, so it is not in
// packages/schema/operators/.

#include <fusewheel/attention/attention_decode.h>
#include <fusewheel/kernel.h>

#include <vector>

#include "decode.h"
#include "decode_tasks.h"

namespace fusewheel {

using FUSEWHEEL_ISA::first_key;

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

std::tuple<Tensor, Tensor> attention_decode(
    const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& lengths,
    const std::optional<Tensor>& block_table, const std::optional<Tensor>& k_scales,
    const std::optional<Tensor>& v_scales, const std::optional<Tensor>& sinks, int64_t left,
    double scale, double softcap) {
  AttentionDecode call(kOp, q, k_cache, v_cache, lengths, block_table, k_scales, v_scales, sinks,
                       left, scale, softcap);
  auto& args = call.args;
  const auto found = read_lengths(lengths, args.entries * args.page_size);
  args.lengths = found.data();
  check_pages(args, k_cache.sizes()[0]);
  call.allocate();
  if (call.logsumexp.numel() == 0) {
    return {call.out, call.logsumexp};
  }
  Decode decode(args);
  const int64_t bytes = decode.bytes();
  const Tensor memory = empty_contiguous({&bytes, 1}, ScalarType::Byte, q);
  decode.run(memory.mutable_data_ptr());
  return {call.out, call.logsumexp};
}

FUSEWHEEL_KERNELS(library) { kernel<attention_decode>(library, "attention_decode"); }

}  // namespace
}  // namespace fusewheel
