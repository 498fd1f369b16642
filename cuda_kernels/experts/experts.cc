// Memory and launches of experts.

#include <fusewheel/aten.h>
#include <fusewheel/experts/experts.h>

#include "experts.h"
#include "linear/by_vectors.h"

namespace fusewheel {
namespace {

ExpertLayer layer_of(const Experts::Layer& layer, const Tensor& from, int64_t stride) {
  ExpertLayer out = {};
  out.weights = layer.weight.weights;
  out.rows = layer.weight.rows;
  if (layer.bias.has_value()) {
    out.bias = layer.bias->const_data_ptr();
    out.bias_dtype = dtype_of(*layer.bias);
  }
  out.from = from.const_data_ptr();
  out.stride = stride;
  out.from_dtype = dtype_of(from);
  return out;
}

}  // namespace

void mix(const char* op, Experts& call) {
  const auto dtype_for = [&](const Experts::Layer& layer) {
    return layer.is_floating() ? call.y.scalar_type() : accumulate_type(call.y);
  };
  const Tensor indices = as_contiguous(call.indices);
  const int64_t tokens = indices.sizes()[0];
  const int64_t k = indices.sizes()[1];
  const ExpertChoice choice{indices.const_data_ptr(), indices.scalar_type() == ScalarType::Long,
                            tokens, k, call.first.weight.count};
  // Rows of 128 bits.
  constexpr int64_t kTogether = 8;
  const int64_t inner = call.last.weight.columns;
  const int64_t stride = (inner + kTogether - 1) / kTogether * kTogether;
  const int64_t sizes[] = {tokens * k, stride};
  const Tensor hidden = empty_contiguous({sizes, 2}, dtype_for(call.last), call.y);
  const RowMatrix rows = rows_of(as_type(call.x, dtype_for(call.first)));
  const RowMatrix x = call.first.is_floating() ? rows : by_vectors(rows, kBlockPart);
  const ExpertsFirstArgs first{choice,
                               layer_of(call.first, x.tensor, x.stride),
                               call.activation,
                               dtype_of(call.y),
                               hidden.mutable_data_ptr(),
                               stride,
                               dtype_of(hidden)};
  run(op, call.first.is_floating() ? experts_first_launch : experts_first_blocks_launch, first,
      call.y);
  const RowMatrix weights = rows_of(call.weights);
  const ExpertsLastArgs last{choice,
                             layer_of(call.last, hidden, stride),
                             weights.tensor.const_data_ptr(),
                             weights.stride,
                             dtype_of(weights.tensor),
                             call.y.mutable_data_ptr(),
                             dtype_of(call.y)};
  run(op, call.last.is_floating() ? experts_last_launch : experts_last_blocks_launch, last, call.y);
}

}  // namespace fusewheel
