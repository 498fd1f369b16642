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

// Checks the weights, and notes where they lie.
void Call::take_weights() {
  const size_t count = weights_.size();
  for (size_t i = 0; i < count; ++i) {
    if (i + kHandleAhead < count) {
      __builtin_prefetch(weights_[i + kHandleAhead].get());
      ask_for_tensor(weights_[i + kTensorAhead]);
    }
    const auto index = given_ + static_cast<uint32_t>(i);
    check_input(index);
    put_in_order(index);
    data_of(index);
  }
}

}  // namespace fusewheel::engine
