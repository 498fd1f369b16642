// Runs models without Python, each on its own inputs.
//
//     run_model LIBRARY... -- MODEL INPUTS OUTPUTS [MODEL INPUTS OUTPUTS]...
//
// A LIBRARY holds operators. MODEL is a package of AOTInductor (.pt2) or a TorchScript file, INPUTS
// a list of tensors that torch.save wrote, and OUTPUTS will be a tuple of tensors.

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace {

using Tensors = std::vector<at::Tensor>;

Tensors read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const c10::IValue list = torch::jit::pickle_load(bytes);
  Tensors tensors;
  for (const c10::IValue& value : list.toListRef()) {
    tensors.push_back(value.toTensor());
  }
  return tensors;
}

void write(const char* path, const Tensors& tensors) {
  // Not a list, to which a type is attached that torch.load trusts in nobody's file.
  std::vector<c10::IValue> values(tensors.begin(), tensors.end());
  const std::vector<char> bytes =
      torch::jit::pickle_save(c10::ivalue::Tuple::create(std::move(values)));
  std::ofstream(path, std::ios::binary).write(bytes.data(), bytes.size());
}

Tensors run(const std::string& model, const Tensors& inputs) {
  if (model.ends_with(".pt2")) {
    torch::inductor::AOTIModelPackageLoader loader(model);
    loader.run(inputs);
    return loader.run(inputs);  // the second time it has state of the first
  }
  auto module = torch::jit::load(model);
  const c10::IValue result = module.forward({inputs.begin(), inputs.end()});
  if (result.isTensor()) {
    return {result.toTensor()};
  }
  Tensors outputs;
  for (const c10::IValue& value : result.toTupleRef().elements()) {
    outputs.push_back(value.toTensor());
  }
  return outputs;
}

}  // namespace

int main(int argc, char** argv) {
  int i = 1;
  for (; i < argc && std::string(argv[i]) != "--"; ++i) {
    if (dlopen(argv[i], RTLD_NOW) == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
  }
  try {
    c10::InferenceMode guard;
    for (++i; i + 2 < argc; i += 3) {
      write(argv[i + 2], run(argv[i], read(argv[i + 1])));
    }
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s: %s\n", argv[i], error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[i], error.what());
    return 1;
  }
}
