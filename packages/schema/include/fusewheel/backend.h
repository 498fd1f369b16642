// What each kernel library answers in its own way: cpu_kernels/backend.cc, cuda_kernels/backend.cc.
#pragma once

#include <fusewheel/geometry.h>
#include <torch/csrc/stable/tensor.h>

#include <functional>

namespace fusewheel {

// Calls body with the stream of a tensor's device, which is the current device meanwhile.
void on_stream(const char* op, const torch::stable::Tensor& tensor,
               const std::function<void(Stream)>& body);

// Whether the numbers in a tensor can be read here: those in a GPU's memory cannot.
bool can_read_tensors();

// Into how many chunks of rows a sum over all rows is split. It depends on the shape alone: the
// same bits for any number of threads and on every GPU.
int64_t row_chunks(int64_t count, int64_t size);

// Runs a launcher for a tensor's device.
template <typename Args>
void run(const char* op, void (*launcher)(const Args&, Stream), const Args& args,
         const torch::stable::Tensor& tensor) {
  on_stream(op, tensor, [&](Stream stream) { launcher(args, stream); });
}

// The same for a checked elementwise call, unless it has no elements.
template <int operands, typename Call>
void run(const char* op, void (*launcher)(const ElementwiseArgs<operands>&, Stream),
         const Call& call) {
  if (call.args.geometry.numel > 0) {
    run(op, launcher, call.args, call.out[0]);
  }
}

}  // namespace fusewheel
