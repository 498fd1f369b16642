#include "prepare.h"

#include <algorithm>
#include <cstring>

#include "bfloat16_rows.h"
#include "matmul.h"
#include "parallel.h"

namespace fusewheel {

using FUSEWHEEL_ISA::kGrain;
using FUSEWHEEL_ISA::parallel_for;

namespace {

constexpr int64_t kCacheLine = 64;

int64_t round_up(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }

// Whether rows at this distance lie in one set of the first-level cache: a set is the lines whose
// addresses differ by multiples of 4 KiB. A register tile reads up to 12 rows at once.
bool share_a_set(int64_t stride, int64_t size_of_number) {
  constexpr int64_t kSets = 4096;
  return stride > 0 && stride * size_of_number % kSets == 0;
}

RowMatrix copy_of(const RowMatrix& rows, bool wide, bool transposed) {
  const int64_t size_of_number = wide ? sizeof(double) : sizeof(float);
  const int64_t count = transposed ? rows.size : rows.count;
  const int64_t size = transposed ? rows.count : rows.size;
  const bool apart = count > 1 && share_a_set(size, size_of_number);
  const int64_t stride = size + (apart ? kCacheLine / size_of_number : 0);
  const int64_t sizes[] = {count, stride};
  const ScalarType type = wide ? ScalarType::Double : ScalarType::Float;
  const Tensor to = empty_contiguous({sizes, 2}, type, rows.tensor);
  const WidenArgs args{rows.tensor.const_data_ptr(), dtype_of(rows.tensor), rows.stride, rows.size,
                       transposed, rows.count, to.mutable_data_ptr(), stride, wide};
  const auto all = FUSEWHEEL_SELECT(widen_rows);
  parallel_for(count, kGrain / std::max<int64_t>(size, 1) + 1,
               [&](int64_t begin, int64_t end) { all(args, begin, end); });
  return {to, count, size, stride};
}

}  // namespace

RowMatrix widen(const RowMatrix& rows, bool wide, bool transposed) {
  const ScalarType type = wide ? ScalarType::Double : ScalarType::Float;
  if (!transposed && rows.tensor.scalar_type() == type) {
    return rows;
  }
  return copy_of(rows, wide, transposed);
}

Tensor memory_for_tiles(int64_t columns, int64_t rows, bool wide, const Tensor& like) {
  // Tiles are written side by side.
  const int64_t size_of_number = wide ? sizeof(double) : sizeof(float);
  const bool collides = share_a_set(rows * kWholeTiles, size_of_number);
  const int64_t sizes[] = {round_up(columns, kWholeTiles),
                           rows + (collides ? kCacheLine / size_of_number : 0)};
  return empty_contiguous({sizes, 2}, wide ? ScalarType::Double : ScalarType::Float, like);
}

RowMatrix columns_in_tiles(const RowMatrix& rows, bool wide, const std::optional<Tensor>& memory) {
  const Tensor to =
      memory ? *memory : memory_for_tiles(rows.size, rows.count, wide, rows.tensor);
  const int64_t stride = to.sizes()[1];
  const TilesArgs args{rows.tensor.const_data_ptr(), dtype_of(rows.tensor), rows.stride, rows.size,
                       rows.count, to.mutable_data_ptr(), stride, wide};
  const auto write = FUSEWHEEL_SELECT(write_tiles);
  parallel_for((rows.size + kTilesStrip - 1) / kTilesStrip,
               kGrain / (std::max<int64_t>(rows.count, 1) * kTilesStrip) + 1,
               [&](int64_t begin, int64_t end) { write(args, begin, end); });
  return {to, rows.size, rows.count, stride};
}

RowMatrix spread(const RowMatrix& rows, int64_t columns) {
  // Copying takes as long as multiplying by some 30 columns, and the product gains 8 %. Few rows are
  // multiplied along the rows of the weight.
  constexpr int64_t kFewestColumns = 512;
  constexpr int64_t kFewestRows = 17;
  const bool wide = rows.tensor.scalar_type() == ScalarType::Double;
  const int64_t size_of_number = wide ? sizeof(double) : sizeof(float);
  const bool pays = choices().spread_rows && columns >= kFewestColumns &&
                    rows.count >= kFewestRows && share_a_set(rows.stride, size_of_number);
  return pays ? copy_of(rows, wide, false) : rows;
}

bool multiplies_bfloat16(const RowMatrix& rows, const LinearWeight& weight) {
  const bool is_exact = is_bfloat16(weight);
  return (choices().amx || choices().bf16) && (is_exact || weight.kind == WeightKind::kBlocks) &&
         rows.tensor.scalar_type() == ScalarType::BFloat16 && rows.size > 0 &&
         rows.count >= (is_exact ? kFewestBFloat16Rows : kFewestRoundedRows);
}

RowMatrix whole_rows(const RowMatrix& rows, int64_t count) {
  constexpr int64_t size_of_number = 2;
  const int64_t size = whole_steps(rows.size);
  const bool apart = !share_a_set(rows.stride, size_of_number) || !choices().spread_rows;
  if (size == rows.size && rows.count >= round_up(count, kBFloat16Tile) && apart) {
    return rows;
  }
  const bool collides = share_a_set(size, size_of_number);
  const int64_t sizes[] = {count + kBFloat16Tile - 1, size + (collides ? kBFloat16Step : 0)};
  Tensor to = empty_contiguous({sizes, 2}, ScalarType::BFloat16, rows.tensor);
  const char* from = static_cast<const char*>(rows.tensor.const_data_ptr());
  char* start = static_cast<char*>(to.mutable_data_ptr());
  const int64_t known = rows.size * size_of_number;
  const int64_t row_bytes = sizes[1] * size_of_number;
  parallel_for(sizes[0], kGrain / std::max<int64_t>(size, 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t bytes = i < rows.count ? known : 0;
      if (bytes > 0) {
        std::memcpy(start + i * row_bytes, from + i * rows.stride * size_of_number,
                    static_cast<size_t>(bytes));
      }
      std::memset(start + i * row_bytes + bytes, 0, static_cast<size_t>(row_bytes - bytes));
    }
  });
  return {to, rows.count, rows.size, sizes[1]};
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

// 8-bit codes are multiplied by AMX in steps of a cache line; a block of 32 stays as it is.
int64_t padded_size(const LinearWeight& weight) {
  return weight.kind == WeightKind::kInt4 || weight.group_size <= kInt4Block
             ? kInt4Block
             : round_up(weight.group_size, kCacheLine);
}

// Rows of a multiple of many cache lines would share few places of the first-level cache. In codes, of
// which a line holds `line`.
int64_t row_stride(const LinearWeight& weight, int64_t size, int64_t line) {
  return weight.kind == WeightKind::kInt4 ? size : (round_up(size, line) / line | 1) * line;
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
  const bool are_words = !blocks && !choices().vnni;
  const int64_t stride = row_stride(weight, groups * padded, are_words ? kCacheLine / 2 : kCacheLine);
  codes_ = empty_rows(from, are_words ? ScalarType::Short : ScalarType::Char, stride);
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
  rows_ = {args.codes, args.steps, args.sums, args.offsets, stride, groups, padded, are_words};
  args.rows = rows_;
  const auto all = blocks ? FUSEWHEEL_SELECT(code_blocks) : FUSEWHEEL_SELECT(code_groups);
  parallel_for(from.count, kGrain / std::max<int64_t>(from.size, 1) + 1,
               [&](int64_t begin, int64_t end) { all(args, begin, end); });
}

}  // namespace fusewheel
