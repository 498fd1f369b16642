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

// A kernel as programs call it, without the dispatcher: its arguments are on a stack, and its results
// take their place there.
struct DirectKernel {
  const char* name;
  const char* letters;
  int results;
  void (*call)(StableIValue* stack, uint64_t arguments, uint64_t results);
  const DirectKernel* next;
};

// The last of a library's kernels, from which `next` leads to all others.
const DirectKernel*& direct_kernels();

namespace detail {

// A type as a schema names it, and as a letter for programs (cpu_kernels/engine/operators.h).
template <typename T>
struct TypeName;
template <>
struct TypeName<Tensor> {
  static constexpr char kLetter = 'T';
  static std::string text() { return "Tensor"; }
};
template <>
struct TypeName<std::optional<Tensor>> {
  static constexpr char kLetter = 'O';
  static std::string text() { return "Tensor?"; }
};
template <>
struct TypeName<double> {
  static constexpr char kLetter = 'f';
  static std::string text() { return "float"; }
};
template <>
struct TypeName<int64_t> {
  static constexpr char kLetter = 'i';
  static std::string text() { return "int"; }
};
template <>
struct TypeName<bool> {
  static constexpr char kLetter = 'b';
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

// How many results there are; none where a kernel writes to an argument.
template <typename Result>
struct Results {
  static constexpr int kCount = 1;
};
template <>
struct Results<void> {
  static constexpr int kCount = 0;
};
template <typename... T>
struct Results<std::tuple<T...>> {
  static constexpr int kCount = sizeof...(T);
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

  // A letter for each argument.
  static constexpr char kLetters[] = {
      TypeName<std::remove_cv_t<std::remove_reference_t<Arguments>>>::kLetter..., 0};
  static constexpr int kResults = Results<Result>::kCount;
};

}  // namespace detail

template <auto& function>
void kernel(Library& library, const char* name) {
  using Function = std::remove_reference_t<decltype(function)>;
  using Signature = detail::Signature<Function>;
  const auto call = torch::stable::detail::boxer<Function, &function>::boxed_fn;
  library.impl(name, call);
  signatures() += name + Signature::text() + "\n";
  static const DirectKernel direct{name, Signature::kLetters, Signature::kResults, call,
                                   direct_kernels()};
  direct_kernels() = &direct;
}

}  // namespace fusewheel

#define FUSEWHEEL_KERNELS(library) \
  STABLE_TORCH_LIBRARY_IMPL(fusewheel, FUSEWHEEL_DISPATCH_KEY, library)
