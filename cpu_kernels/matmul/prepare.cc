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

constexpr int64_t kCacheLine = 64;

int64_t round_up(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }

// 8-bit codes are multiplied by AMX in steps of a cache line; a block of 32 stays as it is.
int64_t padded_size(const LinearWeight& weight) {
  return weight.kind == WeightKind::kInt4 || weight.group_size <= kInt4Block
             ? kInt4Block
             : round_up(weight.group_size, kCacheLine);
}

// Rows of a multiple of many cache lines would share few places of the first-level cache.
int64_t row_stride(const LinearWeight& weight, int64_t size) {
  return weight.kind == WeightKind::kInt4 ? size
                                          : (round_up(size, kCacheLine) / kCacheLine | 1) * kCacheLine;
}

Tensor empty_rows(const RowMatrix& from, ScalarType type, int64_t size) {
  const int64_t sizes[] = {from.count, size};
  return empty_contiguous({sizes, 2}, type, from.tensor);
}

}  // namespace

RoundedMatrix::RoundedMatrix(const RowMatrix& from, const LinearWeight& weight) {
  const bool blocks = weight.kind == WeightKind::kInt4;
  const int64_t padded = padded_size(weight);
  const int64_t groups = blocks ? from.size / padded : weight.groups;
  const int64_t stride = row_stride(weight, groups * padded);
  codes_ = empty_rows(from, ScalarType::Char, stride);
  steps_ = empty_rows(from, ScalarType::Float, groups);
  sums_ = empty_rows(from, blocks ? ScalarType::Float : ScalarType::Int, groups);
  CodeArgs args{static_cast<const float*>(from.tensor.const_data_ptr()), from.stride,
                weight.group_size, {}, static_cast<int8_t*>(codes_.mutable_data_ptr()),
                static_cast<float*>(steps_.mutable_data_ptr()), nullptr, nullptr};
  if (blocks) {
    args.sums = static_cast<float*>(sums_.mutable_data_ptr());
  } else {
    args.offsets = static_cast<int32_t*>(sums_.mutable_data_ptr());
  }
  rows_ = {args.codes, args.steps, args.sums, args.offsets, stride, groups, padded};
  args.rows = rows_;
  const auto all = blocks ? FUSEWHEEL_SELECT(code_blocks) : FUSEWHEEL_SELECT(code_groups);
  parallel_for(from.count, kGrain / std::max<int64_t>(from.size, 1) + 1,
               [&](int64_t begin, int64_t end) { all(args, begin, end); });
}

}  // namespace fusewheel
