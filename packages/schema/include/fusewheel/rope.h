// Arguments of rope, checked the same way for every backend.
#pragma once

#include <fusewheel/geometry.h>

namespace fusewheel {

struct RopeTensor {
  const void* in;
  void* out;
  int64_t heads;
  int64_t in_strides[3];  // batch, head, position
  int64_t out_strides[3];
};

struct RopeArgs {
  RopeTensor tensors[2];  // queries, keys
  const void* cos;
  const void* sin;
  int64_t cos_strides[2];  // batch, position
  int64_t sin_strides[2];
  int64_t batch;
  int64_t length;
  int64_t size;
  bool interleaved;
  bool transposed;
  Dtype dtype;
};

}  // namespace fusewheel

#if FUSEWHEEL_GLUE

#include <fusewheel/elementwise.h>

namespace fusewheel {

// A checked call; owns the tensors its arguments point into.
struct Rope {
  Tensor in[2];
  Tensor out[2];
  Tensor cos;
  Tensor sin;
  RopeArgs args;

  Rope(const char* op, Argument q, Argument k, Argument cos_table, Argument sin_table,
       bool interleaved, bool transposed)
      : in{check_heads(op, q, q), check_heads(op, k, q)},
        out{like(in[0]), like(in[1])},
        cos(check_table(op, cos_table, q, args.cos_strides)),
        sin(check_table(op, sin_table, q, args.sin_strides)) {
    const auto sizes = in[0].sizes();
    const auto other = in[1].sizes();
    const int64_t expected[] = {sizes[0], other[1], sizes[2], sizes[3]};
    check_sizes(op, k, {expected, 4}, "q's batch, length and head size");
    for (int i = 0; i < 2; ++i) {
      auto& tensor = args.tensors[i];
      tensor.in = in[i].const_data_ptr();
      tensor.out = out[i].mutable_data_ptr();
      tensor.heads = in[i].sizes()[1];
      for (int d = 0; d < 3; ++d) {
        tensor.in_strides[d] = in[i].strides()[d];
        tensor.out_strides[d] = out[i].strides()[d];
      }
    }
    args.cos = cos.const_data_ptr();
    args.sin = sin.const_data_ptr();
    args.batch = sizes[0];
    args.length = sizes[2];
    args.size = sizes[3];
    args.interleaved = interleaved;
    args.transposed = transposed;
    args.dtype = dtype_of(in[0]);
  }

 private:
  // [batch, heads, length, head size], the head contiguous.
  static Tensor check_heads(const char* op, Argument argument, Argument first) {
    check_floating(op, argument);
    check_matches(op, argument, first);
    const auto sizes = argument.tensor.sizes();
    if (sizes.size() != 4) {
      fail(op, std::string(argument.name) + " must have 4 dimensions (batch, heads, length, "
                                            "head size), got shape " + describe(sizes));
    }
    if (sizes[3] % 2 != 0) {
      fail(op, std::string(argument.name) + " must have an even head size, got " +
                   std::to_string(sizes[3]));
    }
    return argument.tensor.strides()[3] == 1 || sizes[3] == 0
               ? argument.tensor
               : torch::stable::contiguous(argument.tensor);
  }

  // [length, head size] or [1 or batch, length, head size].
  static Tensor check_table(const char* op, Argument table, Argument q, int64_t* strides) {
    check_matches(op, table, q);
    const auto heads = q.tensor.sizes();
    const auto sizes = table.tensor.sizes();
    const size_t lead = sizes.size() == 3 ? 1 : 0;
    if ((sizes.size() != 2 && sizes.size() != 3) || sizes[lead] != heads[2] ||
        sizes[lead + 1] != heads[3] || (lead == 1 && sizes[0] != 1 && sizes[0] != heads[0])) {
      const int64_t expected[] = {heads[0], heads[2], heads[3]};
      fail(op, std::string(table.name) + " must have shape " + describe({expected, 3}) +
                   " (batch or 1, length, head size) or without the batch, got " +
                   describe(sizes));
    }
    Tensor usable = table.tensor.strides()[lead + 1] == 1 || sizes[lead + 1] == 0
                        ? table.tensor
                        : torch::stable::contiguous(table.tensor);
    strides[0] = lead == 1 && sizes[0] != 1 ? usable.strides()[0] : 0;
    strides[1] = usable.strides()[lead];
    return usable;
  }

  // The layout of the input where it is dense with contiguous heads: attention reads the result in
  // the same order.
  static Tensor like(const Tensor& tensor) {
    return is_dense(tensor.sizes(), tensor.strides())
               ? empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type(), tensor)
               : empty_contiguous(tensor.sizes(), tensor.scalar_type(), tensor);
  }
};

}  // namespace fusewheel

#endif  // FUSEWHEEL_GLUE
