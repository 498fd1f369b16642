// Launches grouped products.

#include <fusewheel/aten.h>
#include <fusewheel/experts/grouped_linear.h>

#include "grouped_linear.h"
#include "linear/by_vectors.h"
#include "linear/many_rows.h"

namespace fusewheel {
namespace {

// Weights in blocks are decoded a part at a time, which takes no more memory than this unless a few
// rows or columns of one weight do.
constexpr int64_t kPartBytes = 32 << 20;
constexpr int64_t kLeastColumns = 64;

// y of the columns from `column` on, for groups from `first` to `last`. Numbers lie as their blocks do.
void multiply_part(const char* op, const GroupedProductArgs& args, DecodedGroups part,
                   const Tensor& memory, Stream stream) {
  const GroupWeights& all = args.weights;
  auto* numbers = static_cast<char*>(memory.mutable_data_ptr());
  const Dtype dtype = part.step > 0 ? Dtype::kBFloat16 : Dtype::kFloat32;
  const int64_t bytes = part.step > 0 ? sizeof(float) / 2 : sizeof(float);
  const auto decode = [&](int64_t group, int64_t row, int64_t column, int64_t rows,
                          int64_t columns, int64_t count) {
    LinearWeight weight = all.first;
    weight.data = static_cast<const char*>(all.first.data) + group * all.step;
    weight.rows *= count;
    char* to = numbers + (group - part.first) * rows * columns * bytes;
    dequantise_launch(weight, {row, column, rows * count, columns, to, dtype, part.step}, stream);
  };
  const int64_t rows = args.backward ? part.inner : part.columns;
  const int64_t columns = args.backward ? part.columns : part.inner;
  const bool whole = rows == all.first.rows && columns == all.first.columns;
  if (whole && all.step == rows * all.first.stride) {
    decode(part.first, 0, 0, rows, columns, part.last - part.first);
  } else {
    for (int64_t group = part.first; group < part.last; ++group) {
      decode(group, args.backward ? 0 : part.column, args.backward ? part.column : 0, rows, columns,
             1);
    }
  }
  part.numbers = numbers;
  grouped_decoded_launch(op, args, part, stream);
}

// Whole weights of some groups at a time; or some columns of one, if a weight is large.
void multiply_parts(const char* op, const GroupedProductArgs& args, bool sums, const Tensor& like,
                    Stream stream) {
  const LinearWeight& weight = args.weights.first;
  const int64_t columns = args.backward ? weight.columns : weight.rows;
  const int64_t inner = args.backward ? weight.rows : weight.columns;
  constexpr int64_t kFloat = sizeof(float);
  constexpr int64_t kHalf = kFloat / 2;
  const int64_t bytes = sums ? kWeightParts * kHalf : kFloat;  // of a number
  const int64_t fitting = kPartBytes / (std::max<int64_t>(inner, 1) * bytes);  // columns
  const int64_t most = std::min(
      columns, std::max(fitting / kLeastColumns * kLeastColumns, kLeastColumns));
  const int64_t groups = most < columns ? 1 : std::max<int64_t>(fitting / columns, 1);
  const int64_t together = std::min(groups, args.ends.count);
  const int64_t elements = std::max<int64_t>(together, 1) * most * inner;
  const int64_t memory_bytes = elements * bytes;
  const Tensor memory = empty_contiguous({&memory_bytes, 1}, ScalarType::Byte, like);
  const int64_t step = sums ? elements * kHalf : 0;
  int64_t first = 0;
  do {
    const int64_t last = std::min(first + groups, args.ends.count);
    for (int64_t column = 0; column < columns; column += most) {
      const int64_t count = std::min(most, columns - column);
      multiply_part(op, args, {first, last, column, count, inner, nullptr, step}, memory,
                    stream);
    }
    first = last;
  } while (first < args.ends.count);
}

}  // namespace

bool linear_decoded_tensor(const char* op, const LinearArgs& args, bool backward,
                           const Tensor& like, Stream stream) {
  const GroupedProductArgs own = one_group(args, backward);
  const bool can = args.x_dtype == args.y_dtype && grouped_decoded_takes_sums(op, own);
  if (can) {
    multiply_parts(op, own, true, like, stream);
  }
  return can;
}

void multiply(const char* op, GroupedLinear& call) {
  if (call.y.numel() == 0) {
    return;
  }
  if (call.args.weights.first.kind == WeightKind::kFloating) {
    return run(op, grouped_linear_launch, call.args, call.y);
  }
  const GroupEnds& ends = call.args.ends;
  const bool by_parts = call.args.backward || ends.rows > kFewRowsOfGroup * ends.count;
  const bool sums = by_parts && grouped_decoded_takes_sums(op, call.args);
  if (!sums) {
    const RowMatrix x = rows_of(as_type(call.x.tensor, accumulate_type(call.y)));
    call.x = by_parts ? x : by_vectors(x, kBlockPart);
  }
  call.args.x = call.x.tensor.const_data_ptr();
  call.args.x_stride = call.x.stride;
  on_stream(op, call.y, [&](Stream stream) {
    if (by_parts) {
      multiply_parts(op, call.args, sums, call.y, stream);
    } else {
      grouped_linear_blocks_launch(call.args, stream);
    }
  });
}

void multiply(const char* op, GroupedLinearBackwardWeight& call) {
  if (call.grad_weight.numel() > 0) {
    run(op, grouped_linear_backward_weight_launch, call.args, call.grad_weight);
  }
}

}  // namespace fusewheel
