// Two elementwise operands that are the halves of one tensor's last dimension, [..., gate | up]:
// calls of the kernels that also take them apart.
#pragma once

#include <fusewheel/elementwise.h>

namespace fusewheel {

// The shape of a half, and its strides for the last two of the inputs.
template <int inputs>
Broadcast<inputs> shape_of_halves(const char* op, Argument packed) {
  check_floating(op, packed);
  const auto sizes = packed.tensor.sizes();
  const auto strides = packed.tensor.strides();
  Broadcast<inputs> shapes;
  shapes.dims = packed.tensor.dim();
  if (shapes.dims == 0 || sizes[shapes.dims - 1] % 2 != 0) {
    fail(op, std::string(packed.name) +
                 " must have a last dimension that halves, [..., gate | up], got shape " +
                 describe(sizes));
  }
  std::copy(sizes.begin(), sizes.end(), shapes.sizes);
  shapes.sizes[shapes.dims - 1] /= 2;
  std::copy(strides.begin(), strides.end(), shapes.strides[inputs - 2]);
  std::copy(strides.begin(), strides.end(), shapes.strides[inputs - 1]);
  return shapes;
}

inline void set_halves(void** data, const Tensor& packed, const void* first) {
  const int64_t last = packed.dim() - 1;
  const int64_t distance = packed.sizes()[last] / 2 * packed.strides()[last];
  auto* bytes = static_cast<char*>(const_cast<void*>(first));
  data[0] = bytes;
  data[1] = bytes + distance * static_cast<int64_t>(packed.element_size());
}

// out = f(gate, up). A checked call; owns the tensor its arguments point into.
struct Packed {
  std::array<Tensor, 1> out;
  ElementwiseArgs<3> args;

  Packed(const char* op, Argument packed) {
    auto shapes = shape_of_halves<2>(op, packed);
    out[0] = empty_contiguous(shapes.shape(), packed.tensor.scalar_type(), packed.tensor);
    const auto strides = out[0].strides();
    std::copy(strides.begin(), strides.end(), shapes.output_strides);
    args.geometry = merge<1>(op, shapes);
    args.data[0] = out[0].mutable_data_ptr();
    set_halves(args.data + 1, packed.tensor, packed.tensor.const_data_ptr());
    args.dtype = dtype_of(packed.tensor);
    args.scalar = 0;
  }
};

// (grad_gate, grad_up) = f(grad, gate, up), the halves of one tensor again.
struct PackedBackward {
  std::array<Tensor, 1> out;
  ElementwiseArgs<5> args;

  PackedBackward(const char* op, Argument grad, Argument packed) {
    auto shapes = shape_of_halves<3>(op, packed);
    check_matches(op, grad, packed);
    check_sizes(op, grad, shapes.shape(), "half of the packed tensor");
    const auto given = grad.tensor.strides();
    std::copy(given.begin(), given.end(), shapes.strides[0]);
    const auto& like = packed.tensor;
    out[0] = empty_contiguous(like.sizes(), like.scalar_type(), like);
    const auto strides = out[0].strides();
    std::copy(strides.begin(), strides.end(), shapes.output_strides);
    args.geometry = merge<2>(op, shapes);
    set_halves(args.data, out[0], out[0].mutable_data_ptr());
    args.data[2] = const_cast<void*>(grad.tensor.const_data_ptr());
    set_halves(args.data + 3, like, like.const_data_ptr());
    args.dtype = dtype_of(like);
    args.scalar = 0;
  }
};

}  // namespace fusewheel
