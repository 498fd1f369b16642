// Registration of operators' kernels, the same for every backend.
//
// An operator's file ends with
//
//     FUSEWHEEL_KERNELS(library) {
//       kernel<rms_norm>(library, "rms_norm");
//     }
//
// The dispatch key is the library's own (FUSEWHEEL_DISPATCH_KEY, set once in CMake). LibTorch does
// not compare a kernel with its schema (a schema `float` arrives in an int64_t as garbage bits), so
// the C++ types are written down here and compared by whoever loads the library.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

namespace fusewheel {

using torch::stable::Tensor;
using Library = torch::stable::detail::StableLibrary;

// One line a kernel, "name(Tensor, float) -> Tensor"; defined once a library, in signatures.cpp.
std::string& signatures();

namespace detail {

template <typename T>
struct TypeName;
template <>
struct TypeName<Tensor> {
  static std::string text() { return "Tensor"; }
};
template <>
struct TypeName<std::optional<Tensor>> {
  static std::string text() { return "Tensor?"; }
};
template <>
struct TypeName<double> {
  static std::string text() { return "float"; }
};
template <>
struct TypeName<int64_t> {
  static std::string text() { return "int"; }
};
template <>
struct TypeName<bool> {
  static std::string text() { return "bool"; }
};
template <>
struct TypeName<void> {
  static std::string text() { return "()"; }
};
template <typename... T>
struct TypeName<std::tuple<T...>> {
  static std::string text() {
    std::string out;
    ((out += (out.empty() ? "" : ", ") + TypeName<T>::text()), ...);
    return "(" + out + ")";
  }
};

template <typename Function>
struct Signature;
template <typename Result, typename... Arguments>
struct Signature<Result(Arguments...)> {
  static std::string text() {
    std::string out;
    ((out += (out.empty() ? "" : ", ") +
             TypeName<std::remove_cv_t<std::remove_reference_t<Arguments>>>::text()),
     ...);
    return "(" + out + ") -> " + TypeName<Result>::text();
  }
};

}  // namespace detail

template <auto& function>
void kernel(Library& library, const char* name) {
  using Function = std::remove_reference_t<decltype(function)>;
  library.impl(name, torch::stable::detail::boxer<Function, &function>::boxed_fn);
  signatures() += name + detail::Signature<Function>::text() + "\n";
}

}  // namespace fusewheel

#define FUSEWHEEL_KERNELS(library) \
  STABLE_TORCH_LIBRARY_IMPL(fusewheel, FUSEWHEEL_DISPATCH_KEY, library)
