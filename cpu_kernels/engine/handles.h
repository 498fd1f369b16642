// Tensors as the C interface of torch knows them: half the cost of its C++ classes.
#pragma once

#include <torch/csrc/stable/stableivalue_conversions.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "layout.h"

#if defined(__ELF__)
// torch has it since 2.13; weak, so that older ones load the library.
extern "C" __attribute__((weak)) const char* torch_exception_get_what_without_backtrace();
#endif

namespace fusewheel::engine {

// Why the last call of torch failed, in this thread.
inline std::string torch_error() {
#if defined(__ELF__)
  if (torch_exception_get_what_without_backtrace != nullptr) {
    return torch_exception_get_what_without_backtrace();
  }
#endif
  return "torch has printed why";
}

// Throws what went wrong.
inline void check(AOTITorchError error, const char* what) {
  if (error != AOTI_TORCH_SUCCESS) {
    throw std::runtime_error(std::string("run: ") + what + " failed: " + torch_error());
  }
}

// An argument or result on a stack; a handle's owner is then the stack.
template <typename T>
StableIValue pack(const T& value) {
  return torch::stable::detail::from(value);
}

// An owned tensor.
class Handle {
 public:
  Handle() = default;
  explicit Handle(AtenTensorHandle tensor) : tensor_(tensor) {}
  Handle(Handle&& other) noexcept : tensor_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      tensor_ = other.release();
    }
    return *this;
  }
  ~Handle() { reset(); }

  AtenTensorHandle get() const { return tensor_; }
  explicit operator bool() const { return tensor_ != nullptr; }
  AtenTensorHandle release() { return std::exchange(tensor_, nullptr); }
  void reset() {
    if (tensor_ != nullptr) {
      aoti_torch_delete_tensor_object(release());
    }
  }

  // A second handle of the same tensor.
  Handle again() const {
    AtenTensorHandle other = nullptr;
    check(aoti_torch_new_tensor_handle(tensor_, &other), "a handle of a tensor");
    return Handle(other);
  }

 private:
  AtenTensorHandle tensor_ = nullptr;
};

inline Handle empty_tensor(const Layout& layout, int32_t dtype) {
  AtenTensorHandle made = nullptr;
  check(aoti_torch_empty_strided(layout.rank, layout.sizes, layout.strides, dtype,
                                 aoti_torch_device_type_cpu(), 0, &made),
        "allocating memory");
  return Handle(made);
}

// Autograd records nothing in its life.
class NoGradients {
 public:
  NoGradients() : before_(aoti_torch_grad_mode_is_enabled()) {
    if (before_) {
      aoti_torch_grad_mode_set_enabled(false);
    }
  }
  ~NoGradients() {
    if (before_) {
      aoti_torch_grad_mode_set_enabled(true);
    }
  }
  NoGradients(const NoGradients&) = delete;
  NoGradients& operator=(const NoGradients&) = delete;

 private:
  bool before_;
};

}  // namespace fusewheel::engine
