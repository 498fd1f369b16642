// Broadcasting for elementwise kernels: checks the inputs, allocates or checks the output, and
// merges dimensions so that the usual contiguous call is one flat loop.
#pragma once

#include <fusewheel/allocate.h>
#include <fusewheel/backend.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <utility>

namespace fusewheel {

template <int inputs>
struct Broadcast {
  int64_t dims = 0;
  int64_t sizes[kMaxDims];
  int64_t strides[inputs][kMaxDims];  // 0 where an input is repeated
  int64_t output_strides[kMaxDims];

  IntHeaderOnlyArrayRef shape() const { return {sizes, static_cast<size_t>(dims)}; }
};

// Every element has an address of its own and they leave no gap.
inline bool is_dense(IntHeaderOnlyArrayRef sizes, IntHeaderOnlyArrayRef strides) {
  int64_t expected = 1;
  size_t found = 0;
  size_t wanted = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    wanted += sizes[i] != 1;
  }
  // Walk the dimensions from the smallest stride up.
  while (found < wanted) {
    size_t next = sizes.size();
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] != 1 && strides[i] == expected) {
        next = i;
      }
    }
    if (next == sizes.size() || sizes[next] == 0) {
      return false;
    }
    expected *= sizes[next];
    ++found;
  }
  return true;
}

// Rows like those of `tensor`: in its layout where it is dense and a row's elements are neighbours,
// contiguous otherwise.
inline Tensor empty_rows(const Tensor& tensor) {
  const auto strides = tensor.strides();
  return strides[strides.size() - 1] == 1 && is_dense(tensor.sizes(), strides)
             ? empty_strided(tensor.sizes(), strides, tensor.scalar_type(), tensor)
             : empty_contiguous(tensor.sizes(), tensor.scalar_type(), tensor);
}

// The shape PyTorch's broadcasting gives. The output keeps the layout of dense inputs that agree
// and is contiguous otherwise.
template <int inputs>
Broadcast<inputs> broadcast(const char* op, const std::array<Argument, inputs>& arguments) {
  check_floating(op, arguments[0]);
  Broadcast<inputs> result;
  for (int k = 1; k < inputs; ++k) {
    check_matches(op, arguments[k], arguments[0]);
  }
  for (const auto& argument : arguments) {
    result.dims = std::max(result.dims, argument.tensor.dim());
  }
  bool agree = true;
  const auto first = arguments[0].tensor.strides();
  for (int64_t i = 0; i < result.dims; ++i) {
    int64_t size = 1;
    for (int k = 0; k < inputs; ++k) {
      const auto& tensor = arguments[k].tensor;
      const int64_t own = i - (result.dims - tensor.dim());
      const int64_t extent = own < 0 ? 1 : tensor.sizes()[own];
      if (extent != 1 && size != 1 && extent != size) {
        fail(op, std::string(arguments[k].name) + " of shape " + describe(tensor.sizes()) +
                     " must broadcast with " + arguments[0].name + " of shape " +
                     describe(arguments[0].tensor.sizes()));
      }
      size = extent == 1 ? size : extent;
      result.strides[k][i] = extent == 1 ? 0 : tensor.strides()[own];
      agree = agree && tensor.dim() == result.dims && tensor.strides()[own] == first[own] &&
              extent == arguments[0].tensor.sizes()[own];
    }
    result.sizes[i] = size;
  }
  if (agree && is_dense(result.shape(), first)) {
    std::copy(first.begin(), first.end(), result.output_strides);
    return result;
  }
  int64_t stride = 1;
  for (int64_t i = result.dims; i-- > 0;) {
    result.output_strides[i] = stride;
    stride *= std::max<int64_t>(result.sizes[i], 1);
  }
  return result;
}

// Merged geometry of `outputs` tensors with the output strides, then the inputs. Without elements,
// one dimension of size 0.
template <int outputs, int inputs>
Geometry<outputs + inputs> merge(const char* op, const Broadcast<inputs>& shapes) {
  constexpr int operands = outputs + inputs;
  Geometry<operands> out;
  out.dims = 0;
  out.numel = 1;
  for (const int64_t size : shapes.shape()) {
    out.numel *= size;
  }
  int64_t order[kMaxDims];
  int64_t kept = 0;
  for (int64_t i = shapes.dims; i-- > 0;) {
    if (shapes.sizes[i] == 1 || out.numel == 0) {
      continue;
    }
    // Insertion by the output's stride: the innermost loop should write neighbours.
    int64_t at = kept++;
    for (; at > 0 && shapes.output_strides[order[at - 1]] > shapes.output_strides[i]; --at) {
      order[at] = order[at - 1];
    }
    order[at] = i;
  }
  const auto stride_of = [&](int k, int64_t i) {
    return k < outputs ? shapes.output_strides[i] : shapes.strides[k - outputs][i];
  };
  for (int64_t j = 0; j < kept; ++j) {
    const int64_t i = order[j];
    bool joins = out.dims > 0;
    for (int k = 0; joins && k < operands; ++k) {
      joins = stride_of(k, i) == out.strides[k][out.dims - 1] * out.sizes[out.dims - 1];
    }
    if (joins) {
      out.sizes[out.dims - 1] *= shapes.sizes[i];
      continue;
    }
    if (out.dims == kMergedDims) {
      fail(op, "at most " + std::to_string(kMergedDims) + " dimensions are supported, not counting "
                   "those that continue each other in memory, got more in a tensor of shape " +
                   describe(shapes.shape()));
    }
    out.sizes[out.dims] = shapes.sizes[i];
    for (int k = 0; k < operands; ++k) {
      out.strides[k][out.dims] = stride_of(k, i);
    }
    ++out.dims;
  }
  if (out.dims == 0) {
    out.dims = 1;
    out.sizes[0] = out.numel;
    for (int k = 0; k < operands; ++k) {
      out.strides[k][0] = 1;
    }
  }
  return out;
}

// First and last byte a tensor reaches.
inline std::pair<uintptr_t, uintptr_t> extent(const Tensor& tensor) {
  int64_t low = 0;
  int64_t high = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    const int64_t reach = (tensor.sizes()[i] - 1) * tensor.strides()[i];
    (reach < 0 ? low : high) += reach;
  }
  const auto start = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const auto size = static_cast<int64_t>(tensor.element_size());
  return {start + low * size, start + (high + 1) * size - 1};
}

inline bool same_elements(const Tensor& a, const Tensor& b) {
  if (a.const_data_ptr() != b.const_data_ptr() || a.dim() != b.dim()) {
    return false;
  }
  for (int64_t i = 0; i < a.dim(); ++i) {
    if (a.sizes()[i] != b.sizes()[i] || (a.sizes()[i] > 1 && a.strides()[i] != b.strides()[i])) {
      return false;
    }
  }
  return true;
}

// The input to read while `out` is written. Dense tensors that overlap but differ are refused, as
// PyTorch does; where the elements may merely lie between each other, a copy is read.
inline Tensor unaliased(const char* op, Argument input, Argument out) {
  if (!input.tensor.defined() || !out.tensor.defined() || input.tensor.numel() == 0 ||
      out.tensor.numel() == 0 || same_elements(input.tensor, out.tensor)) {
    return input.tensor;
  }
  const auto [low, high] = extent(out.tensor);
  const auto [first, last] = extent(input.tensor);
  if (first > high || low > last) {
    return input.tensor;
  }
  if (is_dense(input.tensor.sizes(), input.tensor.strides()) &&
      is_dense(out.tensor.sizes(), out.tensor.strides())) {
    fail(op, std::string(out.name) + " must not overlap " + input.name +
                 " in memory unless they are the same tensor");
  }
  return torch::stable::clone(input.tensor);
}

// An output given by the caller: of the broadcast shape, each element in a place of its own.
template <int inputs>
void use_output(const char* op, Broadcast<inputs>& shapes, Argument out, Argument first) {
  check_matches(op, out, first);
  check_sizes(op, out, shapes.shape(), "the broadcast shape of the inputs");
  if (is_expanded(out.tensor)) {
    fail(op, std::string(out.name) + " must not be an expanded tensor: its elements share memory");
  }
  const auto strides = out.tensor.strides();
  for (int64_t i = 0; i < shapes.dims; ++i) {
    shapes.output_strides[i] = strides[i];
  }
}

// A checked call of an elementwise operator, ready for a backend to run.
template <int outputs, int inputs>
struct Elementwise {
  std::array<Tensor, outputs> out;
  ElementwiseArgs<outputs + inputs> args;

  // Allocates the outputs.
  Elementwise(const char* op, const std::array<Argument, inputs>& arguments)
      : Elementwise(op, broadcast<inputs>(op, arguments), arguments) {}

  // Writes into `given` (one output).
  Elementwise(const char* op, Argument given, const std::array<Argument, inputs>& arguments)
      : out{given.tensor} {
    auto shapes = broadcast<inputs>(op, arguments);
    use_output(op, shapes, given, arguments[0]);
    pack(op, shapes, arguments);
  }

 private:
  Elementwise(const char* op, const Broadcast<inputs>& shapes,
              const std::array<Argument, inputs>& arguments)
      : out(allocate(shapes, arguments[0].tensor, std::make_index_sequence<outputs>())) {
    pack(op, shapes, arguments);
  }

  template <size_t... k>
  static std::array<Tensor, outputs> allocate(const Broadcast<inputs>& shapes, const Tensor& like,
                                              std::index_sequence<k...>) {
    const IntHeaderOnlyArrayRef strides(shapes.output_strides, shapes.dims);
    return {((void)k, empty_strided(shapes.shape(), strides, like.scalar_type(), like))...};
  }

  void pack(const char* op, const Broadcast<inputs>& shapes,
            const std::array<Argument, inputs>& arguments) {
    args.geometry = merge<outputs>(op, shapes);
    args.dtype = dtype_of(arguments[0].tensor);
    args.scalar = 0;
    for (int k = 0; k < outputs; ++k) {
      args.data[k] = out[k].mutable_data_ptr();
    }
    for (int k = 0; k < inputs; ++k) {
      args.data[outputs + k] = const_cast<void*>(arguments[k].tensor.const_data_ptr());
    }
  }
};

}  // namespace fusewheel
