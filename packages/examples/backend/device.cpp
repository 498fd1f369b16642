// A device for PyTorch in as few lines as it takes: its memory is ordinary memory, and an operator
// without a kernel of its own runs on a copy on the CPU. It has nothing to do with fusewheel.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr auto kToy = c10::DeviceType::PrivateUse1;

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    return {data, data, &c10::free_cpu, c10::Device(kToy, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Memory memory;
REGISTER_ALLOCATOR(kToy, &memory)

// One device with one stream, which has finished whatever it was given.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<kToy> {
  c10::Device getDevice() const override { return {kToy, 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return {kToy, 0}; }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// Autograd asks these whether the device is in use.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};

Hooks hooks;
[[maybe_unused]] const bool registered = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &memory, keys, at::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &memory, keys,
                                           at::dtype_or_default(dtype));
}

const at::Tensor& resize_in_place(const at::Tensor& tensor, at::IntArrayRef sizes,
                                  std::optional<at::MemoryFormat>) {
  at::native::resize_impl_cpu_(tensor.unsafeGetTensorImpl(), sizes, std::nullopt);
  return tensor;
}

// The same memory, as a tensor of the CPU.
at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor
                         : at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                                         tensor.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  return copy_from(from, resize_in_place(to, from.sizes(), std::nullopt), false);
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("resize_", resize_in_place);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

}  // namespace
