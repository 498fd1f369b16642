// When the values of a program are used for the last time.
#pragma once

#include "program.h"

namespace fusewheel::engine {

// Marks each value's last use as an argument. An output is never used for the last time.
inline void mark_last_uses(Program& program) {
  std::vector<bool> needed(program.values.size(), false);
  for (const uint32_t output : program.outputs) {
    needed[output] = true;
    needed[program.values[output].of] = true;
  }
  for (auto step = program.steps.rbegin(); step != program.steps.rend(); ++step) {
    for (auto argument = step->arguments.rbegin(); argument != step->arguments.rend(); ++argument) {
      for (auto use = argument->values.rbegin(); use != argument->values.rend(); ++use) {
        const uint32_t base = program.values[use->value].of;
        use->last = !needed[use->value];
        needed[use->value] = true;
        use->last_base = !needed[base];
        needed[base] = true;
      }
    }
  }
}

}  // namespace fusewheel::engine
