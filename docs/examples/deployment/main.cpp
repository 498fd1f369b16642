// Runs a language model without Python: prints the logits of the last token, one per line.
//
//     run_model libfusewheel_cpu.so MODEL TOKEN...
//
// MODEL is a package of AOTInductor (.pt2) or a TorchScript file.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

namespace {

at::Tensor run(const std::string& model, const at::Tensor& tokens) {
  if (model.ends_with(".pt2")) {
    torch::inductor::AOTIModelPackageLoader loader(model);
    return loader.run({tokens}).at(0);
  }
  return torch::jit::load(model).forward({tokens}).toTensor();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s libfusewheel_cpu.so MODEL TOKEN...\n", argv[0]);
    return 2;
  }
  // The library defines its operators in the libtorch of this process.
  if (dlopen(argv[1], RTLD_NOW) == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  std::vector<int64_t> tokens;
  for (int i = 3; i < argc; ++i) {
    tokens.push_back(std::atoll(argv[i]));
  }
  try {
    c10::InferenceMode guard;
    const at::Tensor logits = run(argv[2], at::tensor(tokens).unsqueeze(0));
    const at::Tensor last = logits.select(0, 0).select(0, -1).contiguous();
    for (int64_t i = 0; i < last.numel(); ++i) {
      std::printf("%.9g\n", last.const_data_ptr<float>()[i]);
    }
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
