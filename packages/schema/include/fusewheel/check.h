// Argument checks shared by every backend. Each message names the operator, the argument, what was
// expected and what came. They throw std::runtime_error, which reaches Python as RuntimeError with
// the text unchanged (STD_TORCH_CHECK would put the C++ file and line in front).
#pragma once

#include <fusewheel/geometry.h>
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>
#include <string>

namespace fusewheel {

using torch::headeronly::IntHeaderOnlyArrayRef;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

struct Argument {
  const char* name;
  const Tensor& tensor;
};

inline std::string describe(IntHeaderOnlyArrayRef sizes) {
  std::string out = "[";
  for (size_t i = 0; i < sizes.size(); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  }
  return out + "]";
}

inline const char* describe(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float: return "float32";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Half: return "float16";
    case ScalarType::Double: return "float64";
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    case ScalarType::Short: return "int16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    case ScalarType::Bool: return "bool";
    case ScalarType::ComplexFloat: return "complex64";
    case ScalarType::ComplexDouble: return "complex128";
    default: return "another dtype";
  }
}

inline std::string describe_device(const Tensor& tensor) {
  const auto device = tensor.device();
  if (device.is_cpu()) {
    return "cpu";
  }
  if (device.is_cuda()) {
    return "cuda:" + std::to_string(device.index());
  }
  return "another device";
}

[[noreturn]] inline void fail(const char* op, const std::string& message) {
  throw std::runtime_error(std::string(op) + ": " + message);
}

inline Dtype dtype_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::BFloat16: return Dtype::kBFloat16;
    case ScalarType::Half: return Dtype::kFloat16;
    case ScalarType::Double: return Dtype::kFloat64;
    default: return Dtype::kFloat32;
  }
}

inline void check_floating(const char* op, Argument argument) {
  if (!argument.tensor.defined()) {
    fail(op, std::string(argument.name) + " must be a tensor, got None");
  }
  switch (argument.tensor.scalar_type()) {
    case ScalarType::Float:
    case ScalarType::BFloat16:
    case ScalarType::Half:
    case ScalarType::Double: return;
    default:
      fail(op, std::string(argument.name) +
                   " must be float32, bfloat16, float16 or float64, got " +
                   describe(argument.tensor.scalar_type()));
  }
}

// Both arguments defined, floating, of one dtype and on one device.
inline void check_matches(const char* op, Argument argument, Argument first) {
  if (!argument.tensor.defined()) {
    fail(op, std::string(argument.name) + " must be a tensor, got None");
  }
  if (argument.tensor.scalar_type() != first.tensor.scalar_type()) {
    fail(op, std::string(argument.name) + " must have the dtype of " + first.name + ", " +
                 describe(first.tensor.scalar_type()) + ", got " +
                 describe(argument.tensor.scalar_type()));
  }
  if (argument.tensor.device() != first.tensor.device()) {
    fail(op, std::string(argument.name) + " must be on the device of " + first.name + ", " +
                 describe_device(first.tensor) + ", got " + describe_device(argument.tensor));
  }
}

// Whether elements are repeated by a stride of 0. Where there are none, any stride may come.
inline bool is_expanded(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  bool expanded = false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    expanded = expanded || (sizes[d] > 1 && strides[d] == 0);
  }
  return expanded && tensor.numel() > 0;
}

inline void check_sizes(const char* op, Argument argument, IntHeaderOnlyArrayRef expected,
                        const char* reason) {
  const auto sizes = argument.tensor.sizes();
  bool equal = sizes.size() == expected.size();
  for (size_t i = 0; equal && i < sizes.size(); ++i) {
    equal = sizes[i] == expected[i];
  }
  if (!equal) {
    fail(op, std::string(argument.name) + " must have shape " + describe(expected) + " (" +
                 reason + "), got " + describe(sizes));
  }
}

}  // namespace fusewheel
