// From a checked call to a launch: the device of the tensors, and its current stream.
#pragma once

#include <fusewheel/elementwise.h>
#include <fusewheel/kernel.h>

#include "stream.h"

#if FUSEWHEEL_EMULATED

namespace fusewheel {

// On the CPU there is neither.
class OnDevice {
 public:
  OnDevice(const char*, const Tensor&) {}
  Stream stream() const { return nullptr; }
};

}  // namespace fusewheel

#else

#include <torch/csrc/stable/accelerator.h>

// The one symbol that only CUDA builds of torch have; weak, so that the others load the library.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);

namespace fusewheel {

// Makes the tensor's device the current one.
class OnDevice {
 public:
  OnDevice(const char* op, const Tensor& tensor)
      : guard_(tensor.get_device_index()), stream_(current_stream(op, tensor)) {}

  Stream stream() const { return stream_; }

 private:
  static Stream current_stream(const char* op, const Tensor& tensor) {
    if (aoti_torch_get_current_cuda_stream == nullptr) {
      fail(op, "this torch was built without CUDA");
    }
    // Not Stream::id() of torch's stable interface, which is no cudaStream_t.
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(
        aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
    return static_cast<Stream>(stream);
  }

  torch::stable::accelerator::DeviceGuard guard_;
  Stream stream_;
};

}  // namespace fusewheel

#endif

namespace fusewheel {

// Into how many chunks of rows a sum over all rows is split: enough to fill a large GPU, few
// enough that adding them up is cheap. The number depends on the shape alone: the same bits on
// every GPU.
inline int64_t device_row_chunks(int64_t count, int64_t size) {
  const int64_t most = std::clamp<int64_t>((1 << 20) / std::max<int64_t>(size, 1), 256, 2048);
  return std::min<int64_t>(most, count / 8 + 1);
}

template <int operands, typename Call>
void run(const char* op, void (*launch)(const ElementwiseArgs<operands>&, Stream),
         const Call& call) {
  if (call.args.geometry.numel > 0) {
    launch(call.args, OnDevice(op, call.out[0]).stream());
  }
}

}  // namespace fusewheel
