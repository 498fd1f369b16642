#include "prepare.h"

#include <algorithm>

#include "parallel.h"

namespace fusewheel {

using FUSEWHEEL_ISA::kGrain;
using FUSEWHEEL_ISA::parallel_for;

RowMatrix widen(const RowMatrix& rows, bool wide, bool transposed,
                const std::optional<Tensor>& memory) {
  const ScalarType type = wide ? ScalarType::Double : ScalarType::Float;
  if (!transposed && rows.tensor.scalar_type() == type) {
    return rows;
  }
  const int64_t sizes[] = {transposed ? rows.size : rows.count,
                           transposed ? rows.count : rows.size};
  const Tensor to = memory ? *memory : empty_contiguous({sizes, 2}, type, rows.tensor);
  const WidenArgs args{rows.tensor.const_data_ptr(), dtype_of(rows.tensor), rows.stride, rows.size,
                       transposed, rows.count, to.mutable_data_ptr(), wide};
  const auto all = FUSEWHEEL_SELECT(widen_rows);
  parallel_for(sizes[0], kGrain / std::max<int64_t>(sizes[1], 1) + 1,
               [&](int64_t begin, int64_t end) { all(args, begin, end); });
  return {to, sizes[0], sizes[1], sizes[1]};
}

RowMatrix round_to_int8(const RowMatrix& rows, int64_t group_size) {
  const int64_t sizes[] = {rows.count, rows.size};
  Tensor to = empty_contiguous({sizes, 2}, ScalarType::Float, rows.tensor);
  const RoundRowsArgs args{static_cast<const float*>(rows.tensor.const_data_ptr()), rows.stride,
                       rows.size, group_size, static_cast<float*>(to.mutable_data_ptr())};
  const auto all = FUSEWHEEL_SELECT(round_rows);
  parallel_for(rows.count, kGrain / std::max<int64_t>(rows.size, 1) + 1,
               [&](int64_t begin, int64_t end) { all(args, begin, end); });
  return {to, rows.count, rows.size, rows.size};
}

namespace {

Tensor empty_blocks(const RowMatrix& from, ScalarType type, int64_t block) {
  const int64_t sizes[] = {from.count, from.size / block};
  return empty_contiguous({sizes, 2}, type, from.tensor);
}

}  // namespace

RoundedMatrix::RoundedMatrix(const RowMatrix& from)
    : codes(empty_blocks(from, ScalarType::Char, 1)),
      steps(empty_blocks(from, ScalarType::Float, kInt4Block)),
      sums(empty_blocks(from, ScalarType::Float, kInt4Block)) {
  int8_t* to = static_cast<int8_t*>(codes.mutable_data_ptr());
  float* step = static_cast<float*>(steps.mutable_data_ptr());
  float* sum = static_cast<float*>(sums.mutable_data_ptr());
  rows = {to, step, sum, from.size / kInt4Block};
  const CodeArgs args{static_cast<const float*>(from.tensor.const_data_ptr()), from.stride,
                      rows.blocks, to, step, sum};
  const auto all = FUSEWHEEL_SELECT(code_rows);
  parallel_for(from.count, kGrain / std::max<int64_t>(from.size, 1) + 1,
               [&](int64_t begin, int64_t end) { all(args, begin, end); });
}

}  // namespace fusewheel
