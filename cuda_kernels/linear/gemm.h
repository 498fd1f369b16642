// The glue of the linear layers: checked calls to launches of ours, or to products of ATen's.
#pragma once

#include <fusewheel/aten.h>
#include <fusewheel/linear/linear.h>

#include "common/glue.h"
#include "linear.h"
#include "round.h"

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

LinearArgs linear_args(const Linear& call) {
  LinearArgs args{};
  args.weight = call.weight.weight;
  args.x = call.x.tensor.const_data_ptr();
  args.rows = call.x.count;
  args.x_stride = call.x.stride;
  args.x_dtype = dtype_of(call.x.tensor);
  if (call.bias) {
    args.bias = call.bias->const_data_ptr();
    args.bias_dtype = dtype_of(*call.bias);
  }
  args.y = call.y.mutable_data_ptr();
  args.y_dtype = dtype_of(call.y);
  return args;
}

void aten_linear(const Linear& call, const Tensor& weight) {
  const auto& shape = call.weight.weight;
  rounded_linear(as_matrix(call.x.tensor, call.x.count, shape.columns), weight, call.bias,
                 as_matrix(call.y, call.x.count, shape.rows));
}

void aten_linear_backward(const LinearBackward& call, const Tensor& weight) {
  const auto& shape = call.weight.weight;
  rounded_linear(as_matrix(call.grad.tensor, call.grad.count, shape.rows), transposed(weight),
                 std::nullopt, as_matrix(call.grad_x, call.grad.count, shape.columns));
}

// A quantised weight is decoded for ATen's product a panel at a time, which takes no more memory than
// this unless 64 rows or columns do.
constexpr int64_t kPanelBytes = 32 << 20;

// The memory for panels, and how many rows (or columns) of `size` elements they have at most.
struct Panels {
  int64_t most;
  Tensor memory;

  Panels(int64_t count, int64_t size, const Tensor& like) {
    const ScalarType dtype = sum_type(like);
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

// The launchers of one kind of codes.
struct QuantisedLinear {
  void (*few_rows)(const LinearArgs&, Stream);
  void (*dequantise)(const LinearWeight&, const Panel&, Stream);
  void (*round)(const RoundArgs&, Stream);

  // Its activations are rounded by groups of so many first, unless that is 0.
  Tensor forward(const char* op, Linear& call, int64_t rounded_by) const {
    if (call.y.numel() == 0) {
      return call.y;
    }
    const OnDevice device(op, call.y);
    if (rounded_by > 0 && call.x.size > 0 && call.y.scalar_type() != ScalarType::Double) {
      call.x = rounded(call.x, rounded_by, device.stream());
    }
    if (call.x.count <= kFewRows) {
      few_rows(linear_args(call), device.stream());
    } else {
      many_rows(call, device.stream());
    }
    return call.y;
  }

  Tensor backward(const char* op, const LinearBackward& call) const {
    if (call.grad_x.numel() == 0) {
      return call.grad_x;
    }
    const OnDevice device(op, call.grad_x);
    const LinearWeight& weight = call.weight.weight;
    const Panels panels(weight.columns, weight.rows, call.grad_x);
    const Tensor grad = as_type(as_matrix(call.grad.tensor, call.grad.count, weight.rows),
                                panels.memory.scalar_type());
    const Tensor grad_x = as_matrix(call.grad_x, call.grad.count, weight.columns);
    for (int64_t begin = 0; begin < weight.columns; begin += panels.most) {
      const int64_t count = std::min(panels.most, weight.columns - begin);
      const Tensor decoded = panels.matrix(weight.rows, count);
      dequantise(weight,
                 {0, begin, weight.rows, count, decoded.mutable_data_ptr(), dtype_of(decoded)},
                 device.stream());
      rounded_linear(grad, transposed(decoded), std::nullopt, part(grad_x, 1, begin, count));
    }
    return call.grad_x;
  }

 private:
  void many_rows(const Linear& call, Stream stream) const {
    const LinearWeight& weight = call.weight.weight;
    const Panels panels(weight.rows, weight.columns, call.y);
    const Tensor x = as_type(as_matrix(call.x.tensor, call.x.count, weight.columns),
                             panels.memory.scalar_type());
    const Tensor y = as_matrix(call.y, call.x.count, weight.rows);
    for (int64_t begin = 0; begin < weight.rows; begin += panels.most) {
      const int64_t count = std::min(panels.most, weight.rows - begin);
      const Tensor decoded = panels.matrix(count, weight.columns);
      dequantise(weight,
                 {begin, 0, count, weight.columns, decoded.mutable_data_ptr(), dtype_of(decoded)},
                 stream);
      const auto bias = call.bias ? std::optional<Tensor>(part(*call.bias, 0, begin, count))
                                  : std::nullopt;
      rounded_linear(x, decoded, bias, part(y, 1, begin, count));
    }
  }

  Rows rounded(const Rows& x, int64_t group_size, Stream stream) const {
    const int64_t sizes[] = {x.count, x.size};
    Tensor out = empty_contiguous({sizes, 2}, ScalarType::Float, x.tensor);
    round({x.tensor.const_data_ptr(), static_cast<float*>(out.mutable_data_ptr()), x.count,
           x.stride, x.size / group_size, group_size, dtype_of(x.tensor)},
          stream);
    return {out, x.count, x.size, x.size};
  }
};

}  // namespace
}  // namespace fusewheel
