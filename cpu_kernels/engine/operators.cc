#include "operators.h"

#include <fusewheel/export.h>

#include <map>
#include <mutex>

#include "append.h"
#include "steps.h"

namespace fusewheel::engine {

namespace {

struct Listed {
  const char* name;
  const char* overload;
  const char* letters;
};

// PyTorch's, none of which takes a Scalar: the stable ABI cannot pass one. A test compares them with
// their schemas.
constexpr Listed kAten[] = {
    {"aten::_to_copy", "", "Td---bm"},
    {"aten::bmm", "", "TT"},
    {"aten::cat", "", "Li"},
    {"aten::clone", "", "Tm"},
    {"aten::cos", "", "T"},
    {"aten::cumsum", "", "Tid"},
    {"aten::div", "Tensor", "TT"},
    {"aten::embedding", "", "TTibb"},
    {"aten::eq", "Tensor", "TT"},
    {"aten::exp", "", "T"},
    {"aten::ge", "Tensor", "TT"},
    {"aten::gt", "Tensor", "TT"},
    {"aten::index_select", "", "TiT"},
    {"aten::layer_norm", "", "TIOOfb"},
    {"aten::le", "Tensor", "TT"},
    {"aten::linear", "", "TTO"},
    {"aten::logical_and", "", "TT"},
    {"aten::logical_not", "", "T"},
    {"aten::logical_or", "", "TT"},
    {"aten::lt", "Tensor", "TT"},
    {"aten::matmul", "", "TT"},
    {"aten::maximum", "", "TT"},
    {"aten::minimum", "", "TT"},
    {"aten::mul", "Tensor", "TT"},
    {"aten::ne", "Tensor", "TT"},
    {"aten::neg", "", "T"},
    {"aten::reciprocal", "", "T"},
    {"aten::relu", "", "T"},
    {"aten::rms_norm", "", "TIOF"},
    {"aten::rsqrt", "", "T"},
    {"aten::scaled_dot_product_attention", "", "TTTOfbFb"},
    {"aten::sigmoid", "", "T"},
    {"aten::silu", "", "T"},
    {"aten::sin", "", "T"},
    {"aten::softmax", "int", "Tid"},
    {"aten::sqrt", "", "T"},
    {"aten::tanh", "", "T"},
    {"aten::where", "self", "TTT"},
};

constexpr std::string_view kLetters = "TOLifbINFdm-";

class Table {
 public:
  Table() {
    for (const auto& listed : kAten) {
      add({listed.name, listed.overload, listed.letters, 1, nullptr});
    }
    add({"engine::add", "", "TT", 1, add_step});
    add({"engine::addmm", "", "TTT", 1, addmm_step});
    add({"engine::append", "", "TT", 2, append_step});
    add({"engine::attention", "", "TTTF", 1, attention_step});
    add({"engine::masked_attention", "", "TTTTF", 1, masked_attention_step});
    for (auto kernel = direct_kernels(); kernel != nullptr; kernel = kernel->next) {
      if (kernel->results > 0) {  // those without a result write to an argument
        add({std::string("fusewheel::") + kernel->name, "", kernel->letters, kernel->results,
             kernel->call});
      }
    }
  }

  // False if it is listed already, with other letters or results.
  bool add(const Operator& added) {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto key = added.name + "." + added.overload;
    const auto& found = operators_.try_emplace(key, added).first->second;
    return found.letters == added.letters && found.results == added.results;
  }

  const Operator* find(std::string_view name, std::string_view overload) {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = operators_.find(std::string(name) + "." + std::string(overload));
    return found == operators_.end() ? nullptr : &found->second;
  }

  std::string text() {
    const std::lock_guard<std::mutex> guard(lock_);
    std::string out;
    for (const auto& entry : operators_) {
      out += entry.first + " " + entry.second.letters + " " +
             std::to_string(entry.second.results) + "\n";
    }
    return out;
  }

 private:
  std::mutex lock_;
  std::map<std::string, Operator> operators_;
};

Table& table() {
  static Table made;  // when it is first used: all kernels are there then
  return made;
}

}  // namespace

const Operator* find_operator(std::string_view name, std::string_view overload) {
  return table().find(name, overload);
}

}  // namespace fusewheel::engine

// "aten::cat. Li 1": name and overload, letters, number of results; a line for each operator.
FUSEWHEEL_EXPORT const char* fusewheel_step_operators() {
  thread_local std::string text;
  text = fusewheel::engine::table().text();
  return text.c_str();
}

// Lets programs call an operator of yours. The letters must be those of its schema: nobody checks.
// Returns 0; 1 for an unknown letter or no results; 2 if it is listed already with other types.
FUSEWHEEL_EXPORT int fusewheel_add_step_operator(const char* name, const char* overload,
                                                 const char* letters, int results) {
  const std::string_view given = letters;
  if (results < 1 || given.find_first_not_of(fusewheel::engine::kLetters) != given.npos) {
    return 1;
  }
  return fusewheel::engine::table().add({name, overload, letters, results, nullptr}) ? 0 : 2;
}
