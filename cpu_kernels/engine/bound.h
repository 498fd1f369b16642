// Programs that hold their last inputs: the weights of a model, which are the same in every call.
//
// To hand over hundreds of tensors takes about a tenth of a small model's time for a token. `bind` keeps
// them, and returns a tensor that names the program and its weights to `run`. They live as long as the
// memory of that tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "handles.h"
#include "program.h"

namespace fusewheel::engine {

struct Bound {
  std::shared_ptr<const Program> program;
  std::vector<Handle> weights;  // its last inputs
};

// The program that a tensor holds, or names.
std::shared_ptr<const Bound> find_program(const Handle& tensor);

// A tensor that names a program and the weights that it holds from now on.
Handle bind_program(const Handle& tensor, std::vector<Handle> weights);

}  // namespace fusewheel::engine
