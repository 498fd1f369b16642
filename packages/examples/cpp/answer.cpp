// Answers requests with a language model, without Python. A request is a line of tokens on standard
// input; the answer is a line of the tokens that follow, the likeliest each time.
//
//     answer PACKAGE COUNT END
//
// PACKAGE is a package of AOTInductor (.pt2) that takes tokens [1, length] and gives logits. An answer
// has at most COUNT tokens, and ends in front of the token END.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Loader = torch::inductor::AOTIModelPackageLoader;

int64_t next(Loader& model, const std::vector<int64_t>& tokens) {
  const at::Tensor logits = model.run({at::tensor(tokens).unsqueeze(0)}).at(0);
  return logits.select(0, 0).select(0, -1).argmax().item<int64_t>();
}

std::vector<int64_t> tokens_of(const std::string& line) {
  std::istringstream words(line);
  std::vector<int64_t> tokens;
  for (int64_t token; words >> token;) {
    tokens.push_back(token);
  }
  return tokens;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s PACKAGE COUNT END\n", argv[0]);
    return 2;
  }
  try {
    c10::InferenceMode guard;
    Loader model(argv[1]);
    const int64_t count = std::atoll(argv[2]);
    const int64_t end = std::atoll(argv[3]);
    for (std::string line; std::getline(std::cin, line);) {
      std::vector<int64_t> tokens = tokens_of(line);
      for (int64_t i = 0; i < count && !tokens.empty(); ++i) {
        const int64_t token = next(model, tokens);
        if (token == end) {
          break;
        }
        std::cout << token << ' ' << std::flush;
        tokens.push_back(token);
      }
      std::cout << std::endl;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
