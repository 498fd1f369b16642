// The device parts of the linear layers over buffers of the exact size, as in kernels.cpp.

#include <stdexcept>
#include <utility>
#include <vector>

#include "buffer.h"
#include "linear/args.h"

namespace {

using namespace fusewheel;

struct Shape {
  int64_t features;    // out
  int64_t columns;     // in
  int64_t group_size;  // 0: one group
  int64_t gap;         // between the rows of the weight
  int64_t skipped;     // before the first element
};

constexpr Shape kBytes[] = {{1, 1, 0, 0, 0},  {3, 37, 0, 0, 0},   {2, 64, 32, 0, 1},
                            {5, 45, 0, 3, 0}, {9, 128, 64, 16, 0}, {2, 1040, 0, 0, 0}};
constexpr Shape kHalfBytes[] = {
    {1, 32, 32, 0, 0}, {3, 64, 32, 0, 1}, {9, 128, 64, 16, 0}, {2, 2176, 128, 5, 0}};
constexpr Shape kFloating[] = {{1, 1, 0, 0, 0},  {3, 37, 0, 0, 0},  {5, 45, 0, 3, 0},
                               {4, 64, 0, 8, 0}, {2, 300, 0, 0, 1}, {2, 64, 0, 0, 1}};

// Their rows are whole vectors: those that tensor cores take.
constexpr Shape kVectors[] = {
    {1, 8, 0, 0, 0}, {33, 72, 0, 0, 0}, {40, 64, 0, 8, 0}, {3, 1032, 0, 16, 0}};

// Owns the memory that a weight points into; all zero.
struct Weight {
  Buffer data;
  Buffer scales;
  Buffer zeros;
  LinearWeight weight;

  Weight(const Shape& shape, WeightKind kind, Dtype dtype, Dtype scale_dtype)
      : data(extent(shape, stored(shape, kind)), kind == WeightKind::kFloating ? size_of(dtype) : 1,
             shape.skipped, 0),
        scales(shape.features * groups(shape), size_of(scale_dtype), 0, 0),
        zeros(shape.features * groups(shape), size_of(scale_dtype), 0, 0),
        weight{kind,
               dtype,
               data.data(),
               shape.features,
               shape.columns,
               stored(shape, kind) + shape.gap,
               scale_dtype,
               scales.data(),
               kind == WeightKind::kInt4 ? zeros.data() : nullptr,
               groups(shape),
               shape.group_size == 0 ? shape.columns : shape.group_size} {}

 private:
  static int64_t groups(const Shape& shape) {
    return shape.group_size == 0 ? 1 : shape.columns / shape.group_size;
  }
  static int64_t stored(const Shape& shape, WeightKind kind) {
    return kind == WeightKind::kInt4 ? shape.columns / 2 : shape.columns;
  }
  static int64_t extent(const Shape& shape, int64_t row) {
    return (shape.features - 1) * (row + shape.gap) + row;
  }
};

void few_rows(const char* name, void (*run)(const LinearArgs&, Stream), const Shape& shape,
              const LinearWeight& weight, Dtype dtype) {
  if (dtype == Dtype::kFloat64) {
    return;  // decoded, and multiplied by ATen
  }
  for (const int64_t rows : {1, 3, 16}) {
    const int64_t pitch = (shape.columns + kRowRun - 1) / kRowRun * kRowRun;  // by_vectors
    const Buffer x(rows * pitch, size_of(dtype), 0, 0);
    const Buffer bias(shape.features, size_of(dtype), 0, 0);
    const Buffer y(rows * shape.features, size_of(dtype), 0, 0xff);
    run({weight, x.data(), rows, pitch, dtype, bias.data(), dtype, y.data(), dtype}, nullptr);
    y.expect_written(size_of(dtype), name);
  }
}

// Without room behind the rows of x. All that is read is zero: what is beside it would be NaN.
void on_tensor_cores(const Shape& shape, const LinearWeight& weight) {
  for (const int64_t rows : {1, 16, 33}) {
    const Buffer x(rows * shape.columns, sizeof(float), 0, 0);
    const Buffer bias(shape.features, sizeof(float), 0, 0);
    const Buffer y(rows * shape.features, sizeof(float), 0, 0xff);
    const LinearArgs args{weight,          x.data(), rows,     shape.columns,  Dtype::kFloat32,
                          bias.data(), Dtype::kFloat32, y.data(), Dtype::kFloat32};
    if (!linear_tensor_launch(args, nullptr)) {
      throw std::runtime_error("linear: tensor cores do not take these rows");
    }
    y.expect_written(sizeof(float), "linear on tensor cores");
  }
}

// The whole weight, and what is left of it below the first row and right of the first block; as sums of
// parts, too.
void dequantise(const char* name, void (*run)(const LinearWeight&, const Panel&, Stream),
                const LinearWeight& weight) {
  for (const auto& [row, column] : {std::pair<int64_t, int64_t>{0, 0}, {1, kInt4Block}}) {
    const int64_t rows = weight.rows - row;
    const int64_t columns = weight.columns - column;
    if (rows <= 0 || columns <= 0) {
      continue;
    }
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
      const Buffer to(rows * columns, size_of(dtype), 0, 0xff);
      run(weight, {row, column, rows, columns, to.data(), dtype, 0}, nullptr);
      to.expect_written(size_of(dtype), name);
    }
    if (columns % 8 == 0) {
      const Buffer parts(kWeightParts * rows * columns, 2, 0, 0xff);
      const int64_t step = rows * columns * 2;
      run(weight, {row, column, rows, columns, parts.data(), Dtype::kBFloat16, step}, nullptr);
      parts.expect_written(2, name);
    }
  }
}

void round_rows(Dtype dtype, int64_t rows, int64_t groups, int64_t group_size, int64_t gap,
                int64_t skipped) {
  const int64_t columns = groups * group_size;
  const int64_t pitch = columns + gap;
  const Buffer x((rows - 1) * pitch + columns, size_of(dtype), skipped, 0);
  const Buffer to(rows * columns, sizeof(float), 0, 0xff);
  round_launch(
      {x.data(), static_cast<float*>(to.data()), rows, pitch, groups, group_size, dtype}, nullptr);
  to.expect_written(sizeof(float), "round");
}

}  // namespace

int main() {
  for (const Dtype dtype : kDtypes) {
    for (const Shape& shape : kBytes) {
      const Weight codes(shape, WeightKind::kInt8, dtype, dtype);
      few_rows("linear_int8", linear_int8_launch, shape, codes.weight, dtype);
      dequantise("linear_int8", linear_int8_dequantise_launch, codes.weight);
    }
    for (const Shape& shape : kHalfBytes) {
      const Weight codes(shape, WeightKind::kInt4, dtype, dtype);
      few_rows("linear_int4", linear_int4_launch, shape, codes.weight, dtype);
      dequantise("linear_int4", linear_int4_dequantise_launch, codes.weight);
    }
  }
  for (const Dtype dtype : {Dtype::kBFloat16, Dtype::kFloat16}) {
    for (const Shape& shape : kFloating) {
      const Weight weight(shape, WeightKind::kFloating, dtype, dtype);
      few_rows("linear", linear_launch, shape, weight.weight, Dtype::kFloat32);
    }
    for (const Shape& shape : kVectors) {
      const Weight weight(shape, WeightKind::kFloating, dtype, dtype);
      on_tensor_cores(shape, weight.weight);
    }
    round_rows(dtype, 1, 1, 37, 0, 1);
    round_rows(dtype, 5, 3, 32, 0, 1);
    round_rows(dtype, 5, 3, 32, 0, 0);
    round_rows(dtype, 3, 1, 700, 5, 1);
    round_rows(dtype, 3, 1, 4104, 8, 0);
  }
}
