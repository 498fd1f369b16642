// Arguments of rope, checked the same way for every backend.
#pragma once

#include <fusewheel/elementwise.h>
#include <fusewheel/rotary/rope_args.h>

#include <optional>

namespace fusewheel {

using OptionalTensor = std::optional<Tensor>;

// A checked call; owns the tensors its arguments point into.
struct Rope {
  Tensor in[2];
  Tensor out[2];
  Tensor cos;
  Tensor sin;
  OptionalTensor rows;
  RopeArgs args;

  Rope(const char* op, Argument q, Argument k, Argument cos_table, Argument sin_table,
       bool interleaved, const OptionalTensor& positions, bool transposed)
      : in{check_heads(op, q, q), check_heads(op, k, q)},
        // Attention reads the result in the order of the input.
        out{empty_rows(in[0]), empty_rows(in[1])},
        args{} {
    const auto sizes = in[0].sizes();
    const int64_t expected[] = {sizes[0], in[1].sizes()[1], sizes[2], sizes[3]};
    check_sizes(op, k, {expected, 4}, "q's batch, length and head size");
    use_heads(1);
    finish(op, q, cos_table, sin_table, interleaved, positions);
    args.transposed = transposed;
  }

  // In place, to be followed by write_back(x).
  Rope(const char* op, Argument x, Argument cos_table, Argument sin_table, bool interleaved,
       const OptionalTensor& positions)
      : in{check_heads(op, x, x), {}}, out{in[0], {}}, args{} {
    if (is_expanded(x.tensor)) {
      fail(op, std::string(x.name) + " must not be an expanded tensor: its elements share memory");
    }
    finish(op, x, cos_table, sin_table, interleaved, positions);
  }

  // Where the elements of a head are apart, a copy was rotated.
  void write_back(Tensor x) const {
    if (out[0].const_data_ptr() != x.const_data_ptr()) {
      torch::stable::copy_(x, out[0]);
    }
  }

 private:
  void use_heads(int i) {
    auto& tensor = args.tensors[i];
    tensor.in = in[i].const_data_ptr();
    tensor.out = out[i].mutable_data_ptr();
    tensor.heads = in[i].sizes()[1];
    for (int d = 0; d < 3; ++d) {
      tensor.in_strides[d] = in[i].strides()[d];
      tensor.out_strides[d] = out[i].strides()[d];
    }
  }

  void finish(const char* op, Argument q, Argument cos_table, Argument sin_table, bool interleaved,
              const OptionalTensor& positions) {
    use_heads(0);
    const auto sizes = in[0].sizes();
    args.batch = sizes[0];
    args.length = sizes[2];
    args.size = sizes[3];
    args.interleaved = interleaved;
    args.dtype = dtype_of(in[0]);
    use_positions(op, positions, q);
    use_tables(op, cos_table, sin_table, q);
  }

  // [batch, heads, length, head size], the head contiguous.
  static Tensor check_heads(const char* op, Argument argument, Argument first) {
    check_floating(op, argument);
    check_matches(op, argument, first);
    const auto sizes = argument.tensor.sizes();
    if (sizes.size() != 4) {
      fail(op, std::string(argument.name) + " must have 4 dimensions (batch, heads, length, "
                                            "head size), got shape " + describe(sizes));
    }
    return argument.tensor.strides()[3] == 1 || sizes[3] == 0
               ? argument.tensor
               : as_contiguous(argument.tensor);
  }

  // [length] or [1 or batch, length].
  void use_positions(const char* op, const OptionalTensor& positions, Argument q) {
    if (!positions.has_value()) {
      return;
    }
    if (positions->scalar_type() != ScalarType::Long) {
      fail(op, std::string("positions must be int64, got ") + describe(positions->scalar_type()));
    }
    if (positions->device() != q.tensor.device()) {
      fail(op, std::string("positions must be on the device of ") + q.name + ", " +
                   describe_device(q.tensor) + ", got " + describe_device(*positions));
    }
    const auto sizes = positions->sizes();
    const size_t lead = sizes.size() == 2 ? 1 : 0;
    if (sizes.size() != lead + 1 || sizes[lead] != args.length ||
        (lead == 1 && sizes[0] != 1 && sizes[0] != args.batch)) {
      const int64_t expected[] = {args.batch, args.length};
      fail(op, "positions must have shape " + describe({expected, 2}) +
                   " (batch or 1, length) or without the batch, got " + describe(sizes));
    }
    rows = *positions;
    args.rows = static_cast<const int64_t*>(rows->const_data_ptr());
    args.row_strides[0] = lead == 1 && sizes[0] != 1 ? rows->strides()[0] : 0;
    args.row_strides[1] = rows->strides()[lead];
  }

  void use_tables(const char* op, Argument cos_table, Argument sin_table, Argument q) {
    check_matches(op, cos_table, q);
    check_matches(op, sin_table, q);
    const auto sizes = cos_table.tensor.sizes();
    args.rotated = sizes.size() == 0 ? -1 : sizes[sizes.size() - 1];
    if (args.rotated < 0 || args.rotated > args.size || args.rotated % 2 != 0) {
      fail(op, std::string(cos_table.name) + " must have an even last dimension, at most the head "
                                             "size " + std::to_string(args.size) +
                   ", got shape " + describe(sizes));
    }
    args.row_count = !rows.has_value() ? args.length : sizes.size() == 2 ? sizes[0] : -1;
    cos = check_table(op, cos_table, args.cos_strides);
    sin = check_table(op, sin_table, args.sin_strides);
    args.cos = cos.const_data_ptr();
    args.sin = sin.const_data_ptr();
  }

  // [rows, rotated], or without positions [1 or batch, length, rotated] too.
  Tensor check_table(const char* op, Argument table, int64_t* strides) const {
    const auto sizes = table.tensor.sizes();
    const size_t lead = sizes.size() == 3 ? 1 : 0;
    const bool indexed = rows.has_value();
    if (sizes.size() != 2 + lead || sizes[lead] != args.row_count ||
        sizes[lead + 1] != args.rotated || (indexed && lead == 1) ||
        (lead == 1 && sizes[0] != 1 && sizes[0] != args.batch)) {
      const int64_t expected[] = {args.batch, args.length, args.rotated};
      fail(op, std::string(table.name) + " must have shape " +
                   (indexed ? "[rows, " + std::to_string(args.rotated) +
                                  "] where positions are given, the same rows for cos and sin"
                            : describe({expected, 3}) +
                                  " (batch or 1, length, cos's last dimension) or without the "
                                  "batch") +
                   ", got " + describe(sizes));
    }
    Tensor usable = table.tensor.strides()[lead + 1] == 1 || sizes[lead + 1] == 0
                        ? table.tensor
                        : as_contiguous(table.tensor);
    strides[0] = lead == 1 && sizes[0] != 1 ? usable.strides()[0] : 0;
    strides[1] = usable.strides()[lead];
    return usable;
  }
};

}  // namespace fusewheel
