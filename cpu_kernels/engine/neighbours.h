// Which steps of a program are linear layers, and which of them have the same input, as those of
// queries, keys and values do.
#pragma once

#include "program.h"

namespace fusewheel::engine {

inline void mark_linear(Step& step) {
  constexpr std::pair<const char*, WeightKind> kinds[] = {
      {"fusewheel::linear", WeightKind::kFloating},
      {"fusewheel::linear_int8", WeightKind::kInt8},
      {"fusewheel::linear_int4", WeightKind::kInt4},
      {"fusewheel::linear_blocks", WeightKind::kBlocks},
  };
  for (const auto& [name, kind] : kinds) {
    if (step.callee->name == name) {
      step.is_linear = true;
      step.kind = kind;
    }
  }
}

inline bool reads(const Step& step, const Step& other, const Program& program) {
  for (const auto& argument : step.arguments) {
    for (const auto& use : argument.values) {
      for (const uint32_t result : other.results) {
        if (result != kUnused && program.values[use.value].of == result) {
          return true;
        }
      }
    }
  }
  return false;
}

// Marks runs of layers with the same input. None of a run reads what another one computes.
inline void mark_neighbours(Program& program) {
  auto& steps = program.steps;
  for (auto& step : steps) {
    mark_linear(step);
  }
  for (size_t first = 0; first < steps.size(); ++first) {
    size_t end = first + 1;
    const auto joins = [&](const Step& step) {
      bool free = step.is_linear && step.arguments[0].values[0].value ==
                                        steps[first].arguments[0].values[0].value;
      for (size_t other = first; free && other < end; ++other) {
        free = !reads(step, steps[other], program);
      }
      return free;
    };
    while (steps[first].is_linear && end < steps.size() && joins(steps[end])) {
      ++end;
    }
    steps[first].beside = static_cast<uint32_t>(end - first - 1);
    first = end - 1;
  }
}

}  // namespace fusewheel::engine
