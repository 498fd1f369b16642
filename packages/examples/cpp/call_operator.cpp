// Calls an operator of fusewheel from C++: looks it up in PyTorch's dispatcher by its name, prints
// its schema, and runs it.
//
//     call_operator

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <sstream>

int main() {
  try {
    // Gradients are recorded by the Python package, so there are none here.
    c10::InferenceMode guard;
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fusewheel::silu_mul", "");
    std::ostringstream schema;
    schema << op.schema();
    std::printf("%s\n", schema.str().c_str());
    // `typed` compares the C++ types with the schema.
    const auto silu_mul = op.typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
    const at::Tensor gate = at::tensor({-1.0F, 0.0F, 2.0F});
    const at::Tensor up = at::tensor({3.0F, 5.0F, 7.0F});
    const at::Tensor y = silu_mul.call(gate, up);
    for (int64_t i = 0; i < y.numel(); ++i) {
      std::printf("%.6f\n", y.const_data_ptr<float>()[i]);
    }
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  }
}
