// Arguments of the linear layers, checked the same way for every backend.
#pragma once

#include <fusewheel/linear/linear_args.h>
#include <fusewheel/rows.h>

#include <optional>

namespace fusewheel {

inline void check_matrix(const char* op, Argument argument) {
  if (argument.tensor.dim() != 2) {
    fail(op, std::string(argument.name) + " must be a matrix [out features, in features], got "
                 "shape " + describe(argument.tensor.sizes()));
  }
}

inline void check_same_device(const char* op, Argument argument, Argument first) {
  if (!argument.tensor.defined()) {
    fail(op, std::string(argument.name) + " must be a tensor, got None");
  }
  if (argument.tensor.device() != first.tensor.device()) {
    fail(op, std::string(argument.name) + " must be on the device of " + first.name + ", " +
                 describe_device(first.tensor) + ", got " + describe_device(argument.tensor));
  }
}

// A floating weight of any precision up to x's accumulation: float64 asks for float64 throughout.
inline void check_weight_dtype(const char* op, Argument weight, Argument x) {
  check_floating(op, weight);
  if (weight.tensor.scalar_type() == ScalarType::Double &&
      x.tensor.scalar_type() != ScalarType::Double) {
    fail(op, std::string(weight.name) + " may be float64 only where " + x.name +
                 " is, got " + x.name + " in " + describe(x.tensor.scalar_type()));
  }
}

inline void check_code_dtype(const char* op, Argument codes, ScalarType expected) {
  if (codes.tensor.scalar_type() != expected) {
    fail(op, std::string(codes.name) + " must be " + describe(expected) + ", got " +
                 describe(codes.tensor.scalar_type()));
  }
}

// The block format with this number.
inline BlockFormat checked_format(const char* op, int64_t kind) {
  for (const BlockFormat& format : kBlockFormats) {
    if (static_cast<int64_t>(format.kind) == kind) {
      return format;
    }
  }
  fail(op, "kind must be the number of a block format, got " + std::to_string(kind));
}

// A checked weight; owns the tensors its plain part points into.
struct CheckedWeight {
  Tensor data;
  Tensor scales;
  Tensor zeros;
  LinearWeight weight;

  static CheckedWeight floating(const char* op, Argument weight, Argument x) {
    check_same_device(op, weight, x);
    check_weight_dtype(op, weight, x);
    check_matrix(op, weight);
    CheckedWeight out;
    out.take(WeightKind::kFloating, weight.tensor);
    out.weight.dtype = dtype_of(weight.tensor);
    out.weight.columns = weight.tensor.sizes()[1];
    return out;
  }

  static CheckedWeight int8(const char* op, Argument codes, Argument scales, Argument x) {
    check_same_device(op, codes, x);
    check_code_dtype(op, codes, ScalarType::Char);
    check_matrix(op, codes);
    CheckedWeight out;
    out.take(WeightKind::kInt8, codes.tensor);
    out.weight.columns = codes.tensor.sizes()[1];
    out.scales = check_scales(op, scales, codes, x);
    const int64_t groups = scales.tensor.dim() == 2 ? scales.tensor.sizes()[1] : 1;
    const int64_t rows = out.weight.rows;
    const int64_t columns = out.weight.columns;
    const bool per_row = groups == 1;
    if (scales.tensor.dim() < 1 || scales.tensor.dim() > 2 || scales.tensor.sizes()[0] != rows ||
        (!per_row && (groups < 1 || columns % groups != 0 || columns / groups % 32 != 0))) {
      fail(op, std::string(scales.name) + " must have shape [" + std::to_string(rows) + "] or [" +
                   std::to_string(rows) + ", groups] with groups of a multiple of 32 of the " +
                   std::to_string(columns) + " in features, got " +
                   describe(scales.tensor.sizes()));
    }
    out.set_groups(groups, per_row ? columns : columns / groups);
    return out;
  }

  static CheckedWeight int4(const char* op, Argument codes, Argument scales, Argument zeros,
                            int64_t group_size, Argument x) {
    check_same_device(op, codes, x);
    check_code_dtype(op, codes, ScalarType::Byte);
    check_matrix(op, codes);
    if (group_size != 32 && group_size != 64 && group_size != 128) {
      fail(op, "group_size must be 32, 64 or 128, got " + std::to_string(group_size));
    }
    CheckedWeight out;
    out.take(WeightKind::kInt4, codes.tensor);
    out.weight.columns = 2 * codes.tensor.sizes()[1];
    if (out.weight.columns % group_size != 0) {
      fail(op, std::string(codes.name) + " must hold a multiple of group_size in features a row (" +
                   std::to_string(group_size) + "), two a byte, got shape " +
                   describe(codes.tensor.sizes()));
    }
    const int64_t expected[] = {out.weight.rows, out.weight.columns / group_size};
    out.scales = check_scales(op, scales, codes, x);
    check_sizes(op, scales, {expected, 2}, "out features, groups of a row");
    out.zeros = check_scales(op, zeros, codes, x);
    check_matches(op, zeros, scales);
    check_sizes(op, zeros, {expected, 2}, "out features, groups of a row");
    out.weight.zeros = out.zeros.const_data_ptr();
    out.set_groups(expected[1], group_size);
    return out;
  }

  // [out features, blocks of a row, bytes of a block]
  static CheckedWeight stored_blocks(const char* op, Argument blocks, int64_t kind, Argument x) {
    check_same_device(op, blocks, x);
    check_code_dtype(op, blocks, ScalarType::Byte);
    const BlockFormat format = checked_format(op, kind);
    const auto sizes = blocks.tensor.sizes();
    if (sizes.size() != 3 || sizes[2] != format.bytes) {
      fail(op, std::string(blocks.name) + " must have shape [out features, blocks, " +
                   std::to_string(format.bytes) + "] for " + format.name + ", got " +
                   describe(sizes));
    }
    CheckedWeight out;
    out.weight = {};
    out.weight.kind = WeightKind::kBlocks;
    out.weight.blocks = format;
    out.weight.rows = sizes[0];
    out.weight.columns = sizes[1] * format.weights;
    const auto strides = blocks.tensor.strides();
    const bool rows_are_whole =
        strides[2] == 1 && (sizes[1] <= 1 || strides[1] == int64_t{format.bytes});
    out.data = rows_are_whole ? blocks.tensor : as_contiguous(blocks.tensor);
    out.weight.data = out.data.const_data_ptr();
    out.weight.stride = out.data.strides()[0];
    return out;
  }

 private:
  void take(WeightKind kind, const Tensor& tensor) {
    const RowMatrix rows = rows_of(tensor);
    data = rows.tensor;
    weight = {};
    weight.kind = kind;
    weight.data = data.const_data_ptr();
    weight.rows = tensor.sizes()[0];
    weight.stride = rows.stride;
  }

  void set_groups(int64_t groups, int64_t group_size) {
    weight.scales = scales.const_data_ptr();
    weight.scale_dtype = dtype_of(scales);
    weight.groups = groups;
    weight.group_size = group_size;
  }

  static Tensor check_scales(const char* op, Argument scales, Argument codes, Argument x) {
    check_same_device(op, scales, codes);
    check_weight_dtype(op, scales, x);
    return as_contiguous(scales.tensor);
  }
};

// x [..., in features] times the transposed weight: y [..., out features] in the dtype of x.
struct Linear {
  CheckedWeight weight;
  RowMatrix x;
  std::optional<Tensor> bias;
  Tensor y;

  Linear(const char* op, Argument input, const CheckedWeight& checked,
         const std::optional<Tensor>& offset = std::nullopt)
      : weight(checked), x(take(op, input, checked.weight.columns, "in features")) {
    if (offset.has_value() && offset->defined()) {
      const Argument argument{"bias", *offset};
      check_same_device(op, argument, input);
      check_weight_dtype(op, argument, input);
      check_sizes(op, argument, {&checked.weight.rows, 1}, "out features");
      bias = as_contiguous(*offset);
    }
    y = output(input.tensor, checked.weight.rows);
  }

  // Rows of x: all but its last dimension.
  static RowMatrix take(const char* op, Argument x, int64_t features, const char* what) {
    const auto sizes = x.tensor.sizes();
    if (sizes.size() == 0 || sizes[sizes.size() - 1] != features) {
      fail(op, std::string(x.name) + " must have " + std::to_string(features) +
                   " elements in its last dimension (" + what + "), got shape " +
                   describe(sizes));
    }
    RowMatrix rows = rows_of(x.tensor);
    rows.count = 1;
    for (size_t i = 0; i + 1 < sizes.size(); ++i) {
      rows.count *= sizes[i];
    }
    return rows;
  }

  static Tensor output(const Tensor& x, int64_t features) {
    int64_t sizes[kMaxDims];
    for (int64_t i = 0; i + 1 < x.dim(); ++i) {
      sizes[i] = x.sizes()[i];
    }
    sizes[x.dim() - 1] = features;
    return empty_contiguous({sizes, static_cast<size_t>(x.dim())}, x.scalar_type(), x);
  }
};

// grad [..., out features] times the weight: the gradient of x, in the dtype of grad.
struct LinearBackward {
  CheckedWeight weight;
  RowMatrix grad;
  Tensor grad_x;

  LinearBackward(const char* op, Argument gradient, const CheckedWeight& checked)
      : weight(checked),
        grad(Linear::take(op, gradient, checked.weight.rows, "out features")),
        grad_x(Linear::output(gradient.tensor, checked.weight.columns)) {}
};

// grad^T [out features, rows] times x [rows, in features], in the dtype of the weight.
struct LinearBackwardWeight {
  RowMatrix grad;
  RowMatrix x;
  Tensor grad_weight;

  LinearBackwardWeight(Argument gradient, Argument input, Argument weight) {
    const char* op = "linear_backward_weight";
    check_floating(op, gradient);
    check_matches(op, input, gradient);
    check_same_device(op, weight, gradient);
    check_weight_dtype(op, weight, gradient);
    check_matrix(op, weight);
    const auto sizes = weight.tensor.sizes();
    grad = Linear::take(op, gradient, sizes[0], "out features");
    x = Linear::take(op, input, sizes[1], "in features");
    if (grad.count != x.count) {
      fail(op, "x must have as many rows as grad, " + std::to_string(grad.count) + ", got " +
                   std::to_string(x.count));
    }
    grad_weight = empty_contiguous(sizes, weight.tensor.scalar_type(), weight.tensor);
  }
};

}  // namespace fusewheel
