// Arguments of grouped products, checked the same way for every backend.
#pragma once

#include <fusewheel/experts/groups.h>
#include <fusewheel/linear/linear.h>

namespace fusewheel {

inline int64_t end_of(const GroupEnds& ends, int64_t group) {
  const int64_t at = group * ends.stride;
  return ends.is_long ? static_cast<const int64_t*>(ends.data)[at]
                      : static_cast<const int32_t*>(ends.data)[at];
}

// An end for each of `groups`. The numbers are checked where they can be read.
inline GroupEnds check_ends(const char* op, const Tensor& ends, int64_t groups, Argument x) {
  const Argument argument{"ends", ends};
  check_same_device(op, argument, x);
  const ScalarType dtype = ends.scalar_type();
  if (dtype != ScalarType::Int && dtype != ScalarType::Long) {
    fail(op, std::string("ends must be int32 or int64, got ") + describe(dtype));
  }
  check_sizes(op, argument, {&groups, 1}, "the groups of the weight");
  const int64_t rows = x.tensor.sizes()[0];
  const GroupEnds out{ends.const_data_ptr(), ends.strides()[0], dtype == ScalarType::Long, groups,
                      rows};
  int64_t before = 0;
  for (int64_t e = 0; can_read_tensors() && e < groups; ++e) {
    const int64_t end = end_of(out, e);
    if (end < before || end > rows) {
      fail(op, "ends must not fall and be from 0 to " + std::to_string(rows) + ", the rows of " +
                   x.name + ", got " + std::to_string(end) + " after " + std::to_string(before));
    }
    before = end;
  }
  return out;
}

inline void check_group_rows(const char* op, Argument x, int64_t features, const char* what) {
  const auto sizes = x.tensor.sizes();
  if (sizes.size() != 2 || sizes[1] != features) {
    fail(op, std::string(x.name) + " must have shape [rows, " + std::to_string(features) + "] (" +
                 what + "), got " + describe(sizes));
  }
}

// A checked weight of groups; owns the tensors that its plain part points into.
struct CheckedGroups {
  Tensor data;
  GroupWeights weights;
  int64_t count;
  int64_t rows;     // out features
  int64_t columns;  // in features

  // [groups, out features, in features]; copied only if neither of the last two has stride 1.
  static CheckedGroups floating(const char* op, Argument weight, Argument x) {
    check_group_dtype(op, weight, x);
    CheckedGroups out;
    out.data = weight.tensor;
    auto sizes = weight.tensor.sizes();
    if (!is_dense(out.data, 1) && !is_dense(out.data, 2)) {
      out.data = as_contiguous(out.data);
    }
    const auto strides = out.data.strides();
    out.count = sizes[0];
    out.rows = sizes[1];
    out.columns = sizes[2];
    const bool transposed = !is_dense(out.data, 2);
    LinearWeight first = {};
    first.kind = WeightKind::kFloating;
    first.dtype = dtype_of(out.data);
    first.data = out.data.const_data_ptr();
    first.rows = sizes[transposed ? 2 : 1];
    first.columns = sizes[transposed ? 1 : 2];
    first.stride = strides[transposed ? 2 : 1];
    const int64_t bytes = static_cast<int64_t>(out.data.element_size());
    out.weights = {first, transposed, strides[0] * bytes};
    return out;
  }

  // [groups, out features, blocks of a row, bytes of a block]; copied only if the blocks of a row do
  // not lie one behind the other.
  static CheckedGroups stored_blocks(const char* op, Argument blocks, int64_t kind, Argument x) {
    check_same_device(op, blocks, x);
    check_code_dtype(op, blocks, ScalarType::Byte);
    const BlockFormat format = checked_format(op, kind);
    const auto sizes = blocks.tensor.sizes();
    if (sizes.size() != 4 || sizes[3] != format.bytes) {
      fail(op, std::string(blocks.name) + " must have shape [groups, out features, blocks, " +
                   std::to_string(format.bytes) + "] for " + format.name + ", got " +
                   describe(sizes));
    }
    CheckedGroups out;
    const auto given = blocks.tensor.strides();
    const bool rows_are_whole =
        given[3] == 1 && (sizes[2] <= 1 || given[2] == int64_t{format.bytes});
    out.data = rows_are_whole ? blocks.tensor : as_contiguous(blocks.tensor);
    out.count = sizes[0];
    out.rows = sizes[1];
    out.columns = sizes[2] * format.weights;
    LinearWeight first = {};
    first.kind = WeightKind::kBlocks;
    first.blocks = format;
    first.data = out.data.const_data_ptr();
    first.rows = out.rows;
    first.columns = out.columns;
    first.stride = out.data.strides()[1];
    out.weights = {first, false, out.data.strides()[0]};
    return out;
  }

  static void check_group_dtype(const char* op, Argument weight, Argument x) {
    check_same_device(op, weight, x);
    check_weight_dtype(op, weight, x);
    if (weight.tensor.dim() != 3) {
      fail(op, std::string(weight.name) +
                   " must have shape [groups, out features, in features], got " +
                   describe(weight.tensor.sizes()));
    }
  }

 private:
  static bool is_dense(const Tensor& tensor, size_t dim) {
    return tensor.sizes()[dim] <= 1 || tensor.strides()[dim] == 1;
  }
};

// x [rows, in features]: y [rows, out features] in the dtype of x. Or, backward, a gradient of y:
// that of x.
struct GroupedLinear {
  CheckedGroups weight;
  RowMatrix x;
  std::optional<Tensor> bias;
  Tensor y;
  GroupedProductArgs args;

  GroupedLinear(const char* op, Argument input, const CheckedGroups& checked, const Tensor& ends,
                bool backward, const std::optional<Tensor>& offset = std::nullopt)
      : weight(checked), args{} {
    const int64_t inner = backward ? checked.rows : checked.columns;
    check_group_rows(op, input, inner, backward ? "out features" : "in features");
    args.ends = check_ends(op, ends, checked.count, input);
    if (offset.has_value() && offset->defined()) {
      const Argument argument{"bias", *offset};
      check_same_device(op, argument, input);
      check_weight_dtype(op, argument, input);
      const int64_t sizes[] = {checked.count, checked.rows};
      check_sizes(op, argument, {sizes, 2}, "groups, out features");
      bias = as_contiguous(*offset);
      args.bias = bias->const_data_ptr();
      args.bias_dtype = dtype_of(*bias);
    }
    x = rows_of(input.tensor);
    y = Linear::output(input.tensor, backward ? checked.columns : checked.rows);
    args.weights = checked.weights;
    args.backward = backward;
    args.x = x.tensor.const_data_ptr();
    args.x_stride = x.stride;
    args.dtype = dtype_of(input.tensor);
    args.y = y.mutable_data_ptr();
  }
};

// The gradient of a floating weight, in its dtype.
struct GroupedLinearBackwardWeight {
  RowMatrix grad;
  RowMatrix x;
  Tensor grad_weight;
  GroupedGradientArgs args;

  GroupedLinearBackwardWeight(const char* op, Argument gradient, Argument input, Argument weight,
                              const Tensor& ends) {
    check_floating(op, gradient);
    check_matches(op, input, gradient);
    CheckedGroups::check_group_dtype(op, weight, gradient);
    const auto sizes = weight.tensor.sizes();
    check_group_rows(op, gradient, sizes[1], "out features");
    check_group_rows(op, input, sizes[2], "in features");
    const int64_t count = gradient.tensor.sizes()[0];
    if (input.tensor.sizes()[0] != count) {
      fail(op, "x must have as many rows as grad, " + std::to_string(count) + ", got " +
                   std::to_string(input.tensor.sizes()[0]));
    }
    const GroupEnds groups = check_ends(op, ends, sizes[0], gradient);
    grad = rows_of(gradient.tensor);
    x = rows_of(input.tensor);
    grad_weight = empty_contiguous(sizes, weight.tensor.scalar_type(), weight.tensor);
    args = {groups,   grad.tensor.const_data_ptr(), grad.stride, sizes[1],
            x.tensor.const_data_ptr(), x.stride,    sizes[2],    dtype_of(gradient.tensor),
            grad_weight.mutable_data_ptr(), dtype_of(grad_weight)};
  }
};

// Each kernel library has its own way to compute these.
void multiply(const char* op, GroupedLinear& call);
void multiply(const char* op, GroupedLinearBackwardWeight& call);

}  // namespace fusewheel
