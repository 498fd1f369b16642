#include <fusewheel/backend.h>
#include <fusewheel/check.h>

#include <algorithm>

#include "ranges.h"

#if !FUSEWHEEL_EMULATED
#include <torch/csrc/stable/accelerator.h>

// The one symbol that only CUDA builds of torch have; weak, so that the others load the library.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);
#endif

namespace fusewheel {

#if FUSEWHEEL_EMULATED

void on_stream(const char* op, const Tensor&, const std::function<void(Stream)>& body) {
  const Range range(op);
  body(nullptr);
}

#else

void on_stream(const char* op, const Tensor& tensor, const std::function<void(Stream)>& body) {
  const Range range(op);
  const auto device = tensor.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  if (aoti_torch_get_current_cuda_stream == nullptr) {
    fail(op, "this torch was built without CUDA");
  }
  // Not Stream::id() of torch's stable interface, which is no cudaStream_t.
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  body(static_cast<Stream>(stream));
}

#endif

bool can_read_tensors() { return false; }

// Enough to fill a large GPU, few enough that adding them up is cheap.
int64_t row_chunks(int64_t count, int64_t size) {
  const int64_t most = std::clamp<int64_t>((1 << 20) / std::max<int64_t>(size, 1), 256, 2048);
  return std::min<int64_t>(most, count / 8 + 1);
}

}  // namespace fusewheel
