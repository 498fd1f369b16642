// The operator attention_decode on a GPU.

#include <fusewheel/attention/attention_decode.h>
#include <fusewheel/kernel.h>

#include "attention/decode.h"

namespace fusewheel {
namespace {

constexpr const char* kOp = "attention_decode";

std::tuple<Tensor, Tensor> attention_decode(
    const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& lengths,
    const std::optional<Tensor>& block_table, const std::optional<Tensor>& k_scales,
    const std::optional<Tensor>& v_scales, const std::optional<Tensor>& sinks, int64_t left,
    double scale, double softcap) {
  AttentionDecode call(kOp, q, k_cache, v_cache, lengths, block_table, k_scales, v_scales, sinks,
                       left, scale, softcap);
  auto& args = call.args;
  const auto& shape = args.shape;
  call.allocate();
  const int64_t rows = call.logsumexp.numel();
  if (rows == 0) {
    return {call.out, call.logsumexp};
  }
  const int64_t capacity = args.entries * args.page_size;
  const int64_t parts = (capacity + kDecodePart - 1) / kDecodePart;
  const int64_t numbers = parts * rows * (kPartHead + shape.value_size);
  const Tensor found = empty_contiguous({&numbers, 1}, accumulate_type(q), q);
  const DecodeCall given{args,
                         lengths.const_data_ptr(),
                         lengths.strides()[0],
                         lengths.scalar_type() == ScalarType::Long,
                         k_cache.sizes()[0],
                         parts,
                         found.mutable_data_ptr()};
  run(kOp, attention_decode_launch, given, q);
  return {call.out, call.logsumexp};
}

FUSEWHEEL_KERNELS(library) { kernel<attention_decode>(library, "attention_decode"); }

}  // namespace
}  // namespace fusewheel
