// Kernels of three operators for the device "toy", whose memory is ordinary memory.
//
// fusewheel_operators (CMakeLists.txt) compiles in what stands around them: they are called with
// arguments that have been checked, and with memory for the results. A kernel of a real device would
// put its work into a queue; these loop.

#include <fusewheel/backend.h>
#include <fusewheel/check.h>

#include <atomic>
#include <cmath>

namespace fusewheel {

void on_stream(const char*, const Tensor&, const std::function<void(Stream)>& body) {
  body(nullptr);  // a real device makes the tensor's device current, and hands over its stream
}

bool can_read_tensors() { return true; }

int64_t row_chunks(int64_t, int64_t) { return 1; }

namespace {

std::atomic<int64_t> launches = 0;

// Calls body(pointers) for each element: `args` has the pointers of the results, then of the inputs.
template <typename T, int operands, typename Body>
void each_element(const ElementwiseArgs<operands>& args, Body body) {
  const auto& shape = args.geometry;
  for (int64_t i = 0; i < shape.numel; ++i) {
    T* element[operands];
    for (int k = 0; k < operands; ++k) {
      element[k] = static_cast<T*>(args.data[k]);
      int64_t rest = i;
      for (int d = 0; d < shape.dims; ++d) {  // the innermost dimension is the first
        element[k] += rest % shape.sizes[d] * shape.strides[k][d];
        rest /= shape.sizes[d];
      }
    }
    body(element);
  }
}

template <int operands, typename Body>
void elementwise(const char* op, const ElementwiseArgs<operands>& args, Body body) {
  ++launches;
  switch (args.dtype) {
    case Dtype::kFloat32: return each_element<float>(args, body);
    case Dtype::kFloat64: return each_element<double>(args, body);
    default: fail(op, "the device toy computes in float32 and float64 only");
  }
}

}  // namespace

void mul_launch(const ElementwiseArgs<3>& args, Stream) {
  elementwise("mul", args, [](auto** e) { *e[0] = *e[1] * *e[2]; });
}

void silu_mul_launch(const ElementwiseArgs<3>& args, Stream) {
  elementwise("silu_mul", args, [](auto** e) { *e[0] = *e[1] / (1 + std::exp(-*e[1])) * *e[2]; });
}

void silu_mul_backward_launch(const ElementwiseArgs<5>& args, Stream) {
  elementwise("silu_mul_backward", args, [](auto** e) {
    const auto grad = *e[2];
    const auto gate = *e[3];
    const auto up = *e[4];
    const auto sigmoid = 1 / (1 + std::exp(-gate));
    *e[0] = grad * up * sigmoid * (1 + gate * (1 - sigmoid));
    *e[1] = grad * gate * sigmoid;
  });
}

}  // namespace fusewheel

// How many kernels have run, for the tests.
extern "C" __attribute__((visibility("default"))) int64_t fusewheel_toy_launches() {
  return fusewheel::launches;
}
