// Checks the weights of a program before each call. A model has hundreds of them, and reading their values
// drives the tensors that describe them out of the processor's caches. So fetching these takes most of the
// time, and is begun some weights ahead.

#include <cstring>

#include "call.h"

namespace fusewheel::engine {

namespace {

// How many weights ahead memory is asked for: first the handle, then the tensor.
constexpr size_t kHandleAhead = 16;
constexpr size_t kTensorAhead = 8;

void ask_for_tensor(const Handle& tensor) {
  constexpr int64_t kLine = 64;  // bytes
  constexpr int kLines = 4;
  // The handle begins with the address of the tensor. If a torch makes it otherwise, this asks for something
  // else, which does no harm.
  const char* address = nullptr;
  std::memcpy(&address, tensor.get(), sizeof(address));
  for (int line = 0; line < kLines; ++line) {
    __builtin_prefetch(address + line * kLine);
  }
}

}  // namespace

// Where a weight lies; null if it is not what the program says, or not in this order.
const void* Call::find_weight(uint32_t index) const {
  const auto tensor = input(index).get();
  int32_t device = 0;
  int32_t layout = 0;
  int32_t dtype = 0;
  int64_t rank = 0;
  int64_t* sizes = nullptr;
  int64_t* strides = nullptr;
  const void* data = nullptr;
  const bool read = aoti_torch_get_device_type(tensor, &device) == AOTI_TORCH_SUCCESS &&
                    aoti_torch_get_layout(tensor, &layout) == AOTI_TORCH_SUCCESS &&
                    device == aoti_torch_device_type_cpu() &&
                    layout == aoti_torch_layout_strided() &&
                    aoti_torch_get_dtype(tensor, &dtype) == AOTI_TORCH_SUCCESS &&
                    aoti_torch_get_dim(tensor, &rank) == AOTI_TORCH_SUCCESS &&
                    aoti_torch_get_sizes(tensor, &sizes) == AOTI_TORCH_SUCCESS &&
                    aoti_torch_get_strides(tensor, &strides) == AOTI_TORCH_SUCCESS &&
                    torch_get_const_data_ptr(tensor, &data) == AOTI_TORCH_SUCCESS;
  if (!read || dtype != dtype_of(index)) {
    return nullptr;
  }
  const auto& value = program_.values[index];
  bool same = rank == static_cast<int64_t>(value.sizes.size());
  for (int64_t i = 0; same && i < rank; ++i) {
    const bool in_order = sizes[i] == 1 || strides[i] == numbers_[value.strides[i]];
    same = sizes[i] == numbers_[value.sizes[i]] && in_order;
  }
  return same ? data : nullptr;
}

// Notes where the weights lie.
void Call::find_weights() {
  const size_t count = weights_.size();
  for (size_t i = 0; i < count; ++i) {
    if (i + kHandleAhead < count) {
      __builtin_prefetch(weights_[i + kHandleAhead].get());
      ask_for_tensor(weights_[i + kTensorAhead]);
    }
    const auto index = given_ + static_cast<uint32_t>(i);
    data_[index] = static_cast<const char*>(find_weight(index));
  }
}

}  // namespace fusewheel::engine
