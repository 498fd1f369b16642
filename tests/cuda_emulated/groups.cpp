// Weights in blocks, and products of groups, over buffers of the exact size, as in kernels.cpp.

#include <utility>

#include "buffer.h"
#include "experts/grouped_linear.h"
#include "linear/args.h"

namespace {

using namespace fusewheel;

// All blocks are zero. Rows lie `gap` bytes apart, after `skipped` others.
void decode(const BlockFormat& format, int64_t rows, int64_t count, int64_t gap, int64_t skipped) {
  const int64_t bytes = count * format.bytes;
  const int64_t columns = count * format.weights;
  const Buffer data((rows - 1) * (bytes + gap) + bytes, 1, skipped, 0);
  LinearWeight weight{};
  weight.kind = WeightKind::kBlocks;
  weight.data = data.data();
  weight.rows = rows;
  weight.columns = columns;
  weight.stride = bytes + gap;
  weight.blocks = format;
  for (const auto& [row, column] : {std::pair<int64_t, int64_t>{0, 0}, {1, kBlockPart}}) {
    if (row < rows && column < columns) {
      const int64_t down = rows - row;
      const int64_t across = columns - column;
      const Buffer to(down * across, sizeof(float), 0, 0xff);
      linear_blocks_dequantise_launch(
          weight, {row, column, down, across, to.data(), Dtype::kFloat32, 0}, nullptr);
      to.expect_written(sizeof(float), format.name);
      const Buffer parts(kWeightParts * down * across, 2, 0, 0xff);
      const int64_t step = down * across * 2;
      linear_blocks_dequantise_launch(
          weight, {row, column, down, across, parts.data(), Dtype::kBFloat16, step}, nullptr);
      parts.expect_written(2, format.name);
    }
  }
}

struct Groups {
  int64_t rows;
  int32_t ends[3];
  int64_t inner;    // columns of x
  int64_t columns;  // of y
  int64_t gap;      // between rows
  int64_t skipped;  // before the first element
};

constexpr Groups kGroups[] = {
    {1, {0, 0, 1}, 1, 1, 0, 0},       {9, {2, 2, 7}, 37, 3, 0, 1},      {70, {66, 66, 70}, 40, 72, 8, 0},
    {20, {0, 20, 20}, 33, 130, 5, 0}, {65, {1, 64, 65}, 96, 64, 0, 0},
};

// Of `count` rows.
Buffer matrix(int64_t count, int64_t columns, const Groups& groups, Dtype dtype) {
  return {(count - 1) * (columns + groups.gap) + columns, size_of(dtype), groups.skipped, 0};
}

void multiply(const Groups& groups, Dtype dtype, Dtype weight_dtype, bool transposed,
              bool backward) {
  const auto& [rows, ends, inner, columns, gap, skipped] = groups;
  const Buffer stored_ends(3, sizeof(int32_t), 0, 0);
  std::memcpy(stored_ends.data(), ends, sizeof(ends));
  const int64_t down = transposed ? inner : columns;
  const int64_t across = transposed ? columns : inner;
  const Buffer weight = matrix(3 * down, across, groups, weight_dtype);
  const int64_t width = backward ? columns : inner;
  const int64_t y_width = backward ? inner : columns;
  const Buffer x = matrix(rows, width, groups, dtype);
  const Buffer bias(3 * columns, size_of(dtype), 0, 0);
  const Buffer y(rows * y_width, size_of(dtype), 0, 0xff);
  LinearWeight first{};
  first.kind = WeightKind::kFloating;
  first.dtype = weight_dtype;
  first.data = weight.data();
  first.rows = down;
  first.columns = across;
  first.stride = across + gap;
  const int64_t step = down * first.stride * size_of(weight_dtype);
  grouped_linear_launch({{stored_ends.data(), 1, false, 3, rows},
                         {first, transposed, step},
                         backward,
                         x.data(),
                         width + gap,
                         dtype,
                         backward ? nullptr : bias.data(),
                         dtype,
                         y.data()},
                        nullptr);
  y.expect_written(size_of(dtype), "grouped_linear");
}

void gradient(const Groups& groups, Dtype dtype, Dtype to_dtype) {
  const auto& [rows, ends, inner, columns, gap, skipped] = groups;
  const Buffer stored_ends(3, sizeof(int32_t), 0, 0);
  std::memcpy(stored_ends.data(), ends, sizeof(ends));
  const Buffer grad = matrix(rows, columns, groups, dtype);
  const Buffer x = matrix(rows, inner, groups, dtype);
  const Buffer to(3 * columns * inner, size_of(to_dtype), 0, 0xff);
  grouped_linear_backward_weight_launch(
      {{stored_ends.data(), 1, false, 3, rows}, grad.data(), columns + gap, columns, x.data(),
       inner + gap, inner, dtype, to.data(), to_dtype},
      nullptr);
  to.expect_written(size_of(to_dtype), "grouped_linear_backward_weight");
}

}  // namespace

int main() {
  for (const BlockFormat& format : kBlockFormats) {
    decode(format, 1, 1, 0, 1);
    decode(format, 3, 3, 0, 0);
    decode(format, 2, 3, 5, 3);
    decode(format, 2, 2048 / format.weights + 1, 0, 2);
  }
  for (const Groups& groups : kGroups) {
    for (const Dtype dtype : kDtypes) {
      for (const bool transposed : {false, true}) {
        for (const bool backward : {false, true}) {
          multiply(groups, dtype, dtype, transposed, backward);
          multiply(groups, dtype, Dtype::kBFloat16, transposed, backward);
        }
      }
      gradient(groups, dtype, dtype);
      gradient(groups, dtype, Dtype::kFloat16);
    }
  }
}
