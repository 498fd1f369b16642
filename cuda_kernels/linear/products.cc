// Products of few rows, of codes with a half type, and of float32 with a half type, by kernels that decode
// the weight as they read it; of many rows in a half type with a decoded weight by tensor cores; all others
// by ATen's.

#include <fusewheel/aten.h>
#include <fusewheel/linear/products.h>

#include "args.h"
#include "by_vectors.h"
#include "many_rows.h"

namespace fusewheel {
namespace {

// What is summed in, and what a quantised weight becomes for ATen's product. Half precision would
// not do for it: rounding w to bfloat16 alone costs as much as rounding y, at every product.
ScalarType sum_type(const Tensor& x) {
  return x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

// A tensor as the matrix of its last dimension's rows.
Tensor as_matrix(const Tensor& tensor, int64_t rows, int64_t columns) {
  const int64_t sizes[] = {rows, columns};
  return torch::stable::reshape(tensor, {sizes, 2});
}

// y = x * transposed weight + bias for matrices, in the weight's dtype and rounded once to y's.
void rounded_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                    const Tensor& y) {
  const ScalarType dtype = weight.scalar_type();
  const bool direct = y.scalar_type() == dtype;
  Tensor out = direct ? y : empty_contiguous(y.sizes(), dtype, y);
  aten_linear(as_type(x, dtype), weight,
              bias ? std::optional<Tensor>(as_type(*bias, dtype)) : std::nullopt, out);
  if (!direct) {
    Tensor to = y;
    torch::stable::copy_(to, out);
  }
}

LinearArgs linear_args(const LinearWeight& weight, const RowMatrix& x, const Tensor& y) {
  LinearArgs args{};
  args.weight = weight;
  args.x = x.tensor.const_data_ptr();
  args.rows = x.count;
  args.x_stride = x.stride;
  args.x_dtype = dtype_of(x.tensor);
  args.y = y.mutable_data_ptr();
  args.y_dtype = dtype_of(y);
  return args;
}

LinearArgs linear_args(const Linear& call) {
  LinearArgs args = linear_args(call.weight.weight, call.x, call.y);
  if (call.bias) {
    args.bias = call.bias->const_data_ptr();
    args.bias_dtype = dtype_of(*call.bias);
  }
  return args;
}

// A quantised weight is decoded for ATen's product a panel at a time, which takes no more memory
// than this unless 64 rows or columns do.
constexpr int64_t kPanelBytes = 32 << 20;

// From so many rows on tensor cores are tried: with fewer, reading the weight takes the time anyhow.
constexpr int64_t kTensorRows = 5;
// Up to so many rows of float32 and a weight in a half type. Each product is three there, or six: with
// more rows, where converting the weight first matters less, float32's own rate is as high on some GPUs.
constexpr int64_t kMostFloatRows = 128;

// The memory for panels, and how many rows (or columns) of `size` elements they have at most.
struct Panels {
  int64_t most;
  ScalarType type;  // that products are in
  Tensor memory;

  Panels(int64_t count, int64_t size, const LinearWeight& weight, const Tensor& like)
      : type(sum_type(like)) {
    // Weights in blocks are float32 numbers.
    const ScalarType dtype = weight.kind == WeightKind::kBlocks ? ScalarType::Float : type;
    const int64_t bytes = dtype == ScalarType::Double ? sizeof(double) : sizeof(float);
    const int64_t fitting = kPanelBytes / (std::max<int64_t>(size, 1) * bytes);
    most = std::min(count, std::max<int64_t>(fitting / 64 * 64, 64));
    const int64_t elements = most * size;
    memory = empty_contiguous({&elements, 1}, dtype, like);
  }

  Tensor matrix(int64_t rows, int64_t columns) const {
    return as_matrix(part(memory, 0, 0, rows * columns), rows, columns);
  }
};

// y = x * transposed weight + bias, a panel of rows of the weight after another.
void multiply_panels(const Linear& call, Stream stream) {
  const LinearWeight& weight = call.weight.weight;
  const Panels panels(weight.rows, weight.columns, weight, call.y);
  const Tensor x = as_type(as_matrix(call.x.tensor, call.x.count, weight.columns), panels.type);
  const Tensor y = as_matrix(call.y, call.x.count, weight.rows);
  for (int64_t begin = 0; begin < weight.rows; begin += panels.most) {
    const int64_t count = std::min(panels.most, weight.rows - begin);
    const Tensor decoded = panels.matrix(count, weight.columns);
    dequantise_launch(
        weight,
        {begin, 0, count, weight.columns, decoded.mutable_data_ptr(), dtype_of(decoded), 0},
        stream);
    const auto bias =
        call.bias ? std::optional<Tensor>(part(*call.bias, 0, begin, count)) : std::nullopt;
    rounded_linear(x, as_type(decoded, panels.type), bias, part(y, 1, begin, count));
  }
}

// grad_x = grad * weight, a panel of columns of the weight after another.
void multiply_panels(const LinearBackward& call, Stream stream) {
  const LinearWeight& weight = call.weight.weight;
  const Panels panels(weight.columns, weight.rows, weight, call.grad_x);
  const Tensor grad =
      as_type(as_matrix(call.grad.tensor, call.grad.count, weight.rows), panels.type);
  const Tensor grad_x = as_matrix(call.grad_x, call.grad.count, weight.columns);
  for (int64_t begin = 0; begin < weight.columns; begin += panels.most) {
    const int64_t count = std::min(panels.most, weight.columns - begin);
    const Tensor decoded = panels.matrix(weight.rows, count);
    dequantise_launch(
        weight,
        {0, begin, weight.rows, count, decoded.mutable_data_ptr(), dtype_of(decoded), 0},
        stream);
    rounded_linear(grad, transposed(as_type(decoded, panels.type)), std::nullopt,
                   part(grad_x, 1, begin, count));
  }
}

RowMatrix rounded(const RowMatrix& x, int64_t group_size, Stream stream) {
  const int64_t sizes[] = {x.count, x.size};
  Tensor out = empty_contiguous({sizes, 2}, ScalarType::Float, x.tensor);
  round_launch({x.tensor.const_data_ptr(), static_cast<float*>(out.mutable_data_ptr()), x.count,
                x.stride, x.size / group_size, group_size, dtype_of(x.tensor)},
               stream);
  return {out, x.count, x.size, x.size};
}

void multiply_many(const char* op, const Linear& call, Stream stream) {
  if (!linear_decoded_tensor(op, linear_args(call), false, call.y, stream)) {
    multiply_panels(call, stream);
  }
}

void multiply_many(const char* op, const LinearBackward& call, Stream stream) {
  const LinearArgs args = linear_args(call.weight.weight, call.grad, call.grad_x);
  if (!linear_decoded_tensor(op, args, true, call.grad_x, stream)) {
    multiply_panels(call, stream);
  }
}

void multiply_codes(const char* op, Linear& call, int64_t rounded_by, Stream stream) {
  const bool is_double = call.y.scalar_type() == ScalarType::Double;
  if (rounded_by > 0 && call.x.size > 0 && !is_double) {
    call.x = rounded(call.x, rounded_by, stream);
  }
  const bool is_int8 = call.weight.weight.kind == WeightKind::kInt8;
  if (call.weight.weight.kind == WeightKind::kBlocks) {
    if (call.x.count > kFewBlockRows || call.x.size == 0 || is_double) {
      return multiply_many(op, call, stream);
    }
    const RowMatrix x = rows_of(as_type(call.x.tensor, ScalarType::Float));
    call.x = by_vectors(x, kBlockPart);
    return linear_blocks_launch(linear_args(call), stream);
  }
  if (call.x.count <= kFewRows && !is_double) {
    call.x = by_vectors(call.x, kRowRun);
  }
  const LinearArgs args = linear_args(call);
  if (call.x.count >= kTensorRows &&
      (is_int8 ? linear_int8_tensor_launch : linear_int4_tensor_launch)(args, stream)) {
    return;
  }
  if (call.x.count > kFewRows || is_double) {
    return multiply_many(op, call, stream);
  }
  (is_int8 ? linear_int8_launch : linear_int4_launch)(args, stream);
}

// Operands of one dtype are ATen's to multiply in it; others, exactly converted, in the dtype that
// sums have.
ScalarType product_type(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const bool one = x.scalar_type() == weight.scalar_type() &&
                   (!bias || bias->scalar_type() == x.scalar_type());
  return one ? x.scalar_type() : sum_type(x);
}

void multiply_floats(Linear& call, Stream stream) {
  const LinearWeight& shape = call.weight.weight;
  const bool is_half = shape.dtype == Dtype::kBFloat16 || shape.dtype == Dtype::kFloat16;
  if (dtype_of(call.x.tensor) == Dtype::kFloat32 && is_half && call.x.count <= kMostFloatRows) {
    if (call.x.count <= kFewRows) {
      call.x = by_vectors(call.x, kRowRun);
    }
    const LinearArgs args = linear_args(call);
    if (call.x.count >= kTensorRows && linear_tensor_launch(args, stream)) {
      return;
    }
    if (call.x.count <= kFewRows) {
      return linear_launch(args, stream);
    }
  }
  const Tensor& weight = call.weight.data;
  rounded_linear(as_matrix(call.x.tensor, call.x.count, shape.columns),
                 as_type(weight, product_type(call.x.tensor, weight, call.bias)), call.bias,
                 as_matrix(call.y, call.x.count, shape.rows));
}

void multiply_floats(const LinearBackward& call) {
  const LinearWeight& shape = call.weight.weight;
  const Tensor& weight = call.weight.data;
  const ScalarType dtype = product_type(call.grad.tensor, weight, std::nullopt);
  rounded_linear(as_matrix(call.grad.tensor, call.grad.count, shape.rows),
                 transposed(as_type(weight, dtype)), std::nullopt,
                 as_matrix(call.grad_x, call.grad.count, shape.columns));
}

}  // namespace

void multiply(const char* op, Linear& call, int64_t rounded_by) {
  if (call.y.numel() == 0) {
    return;
  }
  on_stream(op, call.y, [&](Stream stream) {
    if (call.weight.weight.kind == WeightKind::kFloating) {
      multiply_floats(call, stream);
    } else {
      multiply_codes(op, call, rounded_by, stream);
    }
  });
}

void multiply(const char* op, LinearBackward& call) {
  if (call.grad_x.numel() == 0) {
    return;
  }
  on_stream(op, call.grad_x, [&](Stream stream) {
    if (call.weight.weight.kind == WeightKind::kFloating) {
      multiply_floats(call);
    } else {
      multiply_many(op, call, stream);
    }
  });
}

void multiply(const char*, LinearBackwardWeight& call) {
  const Tensor& out = call.grad_weight;
  if (out.numel() == 0) {
    return;
  }
  const ScalarType dtype = product_type(call.x.tensor, out, std::nullopt);
  const auto shape = out.sizes();
  const Tensor columns = transposed(as_matrix(call.x.tensor, call.x.count, shape[1]));
  rounded_linear(transposed(as_matrix(call.grad.tensor, call.grad.count, shape[0])),
                 as_type(columns, dtype), std::nullopt, out);
}

}  // namespace fusewheel
