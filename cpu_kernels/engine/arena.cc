#include "arena.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>

#include "program.h"

namespace fusewheel::engine {

namespace {

constexpr int64_t kLine = 64;     // bytes to which values are aligned
constexpr size_t kMostPlans = 8;  // of a program

struct Place {
  int64_t begin;
  int64_t end;
  uint32_t last;
};

int64_t bytes_of(const Layout& layout, int32_t dtype) {
  const auto item = static_cast<int64_t>(aoti_torch_dtype_element_size(dtype));
  const int64_t bytes = calculate(Kind::kMultiply, reach(layout) + 1, item);
  return calculate(Kind::kAdd, bytes, kLine - 1) / kLine * kLine;
}

// Calls visit(step, time) for each step; those that are computed together have the same time.
template <typename Visit>
void for_each_step(const Program& program, const Visit& visit) {
  uint32_t time = 0;
  for (uint32_t index = 0; index < program.steps.size(); ++index) {
    if (index > time + program.steps[time].beside) {
      time = index;
    }
    visit(program.steps[index], time);
  }
}

// The first gap between the places that are taken.
int64_t gap(const std::vector<Place>& taken, int64_t bytes) {
  int64_t begin = 0;
  for (const auto& place : taken) {
    if (place.begin - begin >= bytes) {
      break;
    }
    begin = place.end;
  }
  return begin;
}

std::shared_ptr<const ArenaPlan> make_plan(const Program& program,
                                           const std::vector<int64_t>& numbers,
                                           std::vector<int64_t> sizes) {
  auto plan = std::make_shared<ArenaPlan>();
  plan->sizes = std::move(sizes);
  plan->offsets.assign(program.values.size(), kNowhere);
  plan->bytes = program.tenants.empty() ? 0 : kLine;  // empty values have an address too
  std::vector<Place> taken;  // by their address
  for (const auto& tenant : program.tenants) {
    const auto gone = [&](const Place& place) { return place.last < tenant.first; };
    taken.erase(std::remove_if(taken.begin(), taken.end(), gone), taken.end());
    const Layout layout = layout_of(program, numbers, tenant.value);
    if (tenant.only_one_row && layout.numel != layout.last_size()) {
      continue;
    }
    const int64_t bytes = bytes_of(layout, program.values[tenant.value].dtype);
    const int64_t begin = gap(taken, bytes);
    const int64_t end = calculate(Kind::kAdd, begin, bytes);
    const auto behind = [&](const Place& place) { return place.begin >= begin; };
    taken.insert(std::find_if(taken.begin(), taken.end(), behind), {begin, end, tenant.last});
    plan->offsets[tenant.value] = begin;
    plan->bytes = std::max(plan->bytes, end);
  }
  return plan;
}

}  // namespace

std::shared_ptr<const ArenaPlan> ArenaPlans::find(const Program& program,
                                                  const std::vector<int64_t>& numbers) {
  std::vector<int64_t> sizes;
  sizes.reserve(program.tenant_sizes.size());
  for (const uint32_t number : program.tenant_sizes) {
    sizes.push_back(numbers[number]);
  }
  const std::lock_guard<std::mutex> guard(lock_);
  for (const auto& plan : plans_) {
    if (plan->sizes == sizes) {
      return plan;
    }
  }
  if (plans_.size() == kMostPlans) {
    plans_.erase(plans_.begin());
  }
  plans_.push_back(make_plan(program, numbers, std::move(sizes)));
  return plans_.back();
}

void mark_tenants(Program& program) {
  const auto& values = program.values;
  std::vector<uint32_t> last(values.size(), 0);
  std::vector<bool> seen(values.size(), false);  // by somebody who needs a tensor
  for (const uint32_t output : program.outputs) {
    seen[values[output].of] = true;
  }
  for_each_step(program, [&](const Step& step, uint32_t time) {
    for (const auto& argument : step.arguments) {
      for (const auto& use : argument.values) {
        const uint32_t base = values[use.value].of;
        last[base] = time;
        seen[base] = seen[base] || !step.takes_pointers();
      }
    }
  });
  std::vector<bool> sized(program.numbers.size(), false);
  for_each_step(program, [&](const Step& step, uint32_t time) {
    for (const uint32_t result : step.results) {
      if (result == kUnused || seen[result] || !step.fills_memory()) {
        continue;
      }
      program.tenants.push_back({result, time, std::max(time, last[result]), step.is_linear});
      for (const auto* list : {&values[result].sizes, &values[result].strides}) {
        for (const uint32_t number : *list) {
          if (program.numbers[number].kind != Kind::kConstant && !sized[number]) {
            sized[number] = true;
            program.tenant_sizes.push_back(number);
          }
        }
      }
    }
  });
}

}  // namespace fusewheel::engine
