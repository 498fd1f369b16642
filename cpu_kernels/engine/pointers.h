// Steps whose kernels are called with pointers: no tensor is made of an argument or of a result. The
// values of one token of a text are so small that making a tensor takes as long as a kernel.
#pragma once

#include "program.h"

namespace fusewheel::engine {

bool rms_norm_with_pointers(Call& call, const Step& step);
bool add_rms_norm_with_pointers(Call& call, const Step& step);
bool layer_norm_with_pointers(Call& call, const Step& step);
bool add_layer_norm_with_pointers(Call& call, const Step& step);
bool silu_mul_with_pointers(Call& call, const Step& step);
bool gelu_mul_with_pointers(Call& call, const Step& step);
bool gelu_with_pointers(Call& call, const Step& step);
bool rope_with_pointers(Call& call, const Step& step);
bool attention_with_pointers(Call& call, const Step& step);
bool masked_attention_with_pointers(Call& call, const Step& step);
bool append_with_pointers(Call& call, const Step& step);

// Sets which steps can be called so.
inline void mark_pointers(Program& program) {
  constexpr std::pair<const char*, PointerStep> known[] = {
      {"fusewheel::rms_norm", rms_norm_with_pointers},
      {"fusewheel::add_rms_norm", add_rms_norm_with_pointers},
      {"fusewheel::layer_norm", layer_norm_with_pointers},
      {"fusewheel::add_layer_norm", add_layer_norm_with_pointers},
      {"fusewheel::silu_mul", silu_mul_with_pointers},
      {"fusewheel::gelu_mul", gelu_mul_with_pointers},
      {"fusewheel::gelu", gelu_with_pointers},
      {"fusewheel::rope", rope_with_pointers},
      {"engine::attention", attention_with_pointers},
      {"engine::masked_attention", masked_attention_with_pointers},
      {"engine::append", append_with_pointers},
  };
  for (auto& step : program.steps) {
    for (const auto& [name, function] : known) {
      if (step.callee->name == name) {
        step.with_pointers = function;
      }
    }
    step.makes_tensors = step.with_pointers == append_with_pointers;
  }
}

}  // namespace fusewheel::engine
