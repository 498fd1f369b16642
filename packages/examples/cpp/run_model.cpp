// Runs a language model without Python: prints the logits of the last token, one per line.
//
//     run_model MODEL TOKEN...
//
// MODEL is a package of AOTInductor (.pt2) or a TorchScript file. Its operators of fusewheel are there
// because the program is linked with fusewheel::cpu.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
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
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MODEL TOKEN...\n", argv[0]);
    return 2;
  }
  std::vector<int64_t> tokens;
  for (int i = 2; i < argc; ++i) {
    tokens.push_back(std::atoll(argv[i]));
  }
  try {
    c10::InferenceMode guard;
    const at::Tensor logits = run(argv[1], at::tensor(tokens).unsqueeze(0));
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
