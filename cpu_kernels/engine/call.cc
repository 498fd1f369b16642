#include "call.h"

#include <fusewheel/check.h>

#include <algorithm>

namespace fusewheel::engine {

namespace {

using torch::stable::detail::to;

std::string shown(const int64_t* numbers, int64_t count) {
  return describe(IntHeaderOnlyArrayRef(numbers, static_cast<size_t>(count)));
}

std::string dtype_name(int32_t dtype) { return describe(static_cast<ScalarType>(dtype)); }

// How far the last element is from the first; -1 where there is no element.
int64_t reach(int64_t rank, const int64_t* sizes, const int64_t* strides) {
  int64_t last = 0;
  for (int64_t i = 0; i < rank; ++i) {
    if (sizes[i] < 0 || strides[i] < 0) {
      throw std::runtime_error("run: a value of the program has a negative size or stride");
    }
    if (sizes[i] == 0) {
      return -1;
    }
    last = calculate(Kind::kAdd, last, calculate(Kind::kMultiply, sizes[i] - 1, strides[i]));
  }
  return last;
}

// A value as an optional argument, which torch deletes.
StableIValue boxed(StableIValue value) { return pack(new StableIValue(value)); }

torch::headeronly::MemoryFormat format_of(uint32_t code) {
  return code == 0 ? torch::headeronly::MemoryFormat::Contiguous
                   : torch::headeronly::MemoryFormat::Preserve;
}

}  // namespace

Call::Call(const Program& program, std::vector<Handle> inputs)
    : program_(program), values_(std::move(inputs)) {
  if (values_.size() != program.inputs) {
    throw std::runtime_error("run: inputs must be the " + std::to_string(program.inputs) +
                             " tensors of the program, got " + std::to_string(values_.size()));
  }
  for (uint32_t i = 0; i < program.inputs; ++i) {
    int32_t device = 0;
    int32_t layout = 0;
    int64_t rank = 0;
    check(aoti_torch_get_device_type(values_[i].get(), &device), "reading an input's device");
    check(aoti_torch_get_layout(values_[i].get(), &layout), "reading an input's layout");
    check(aoti_torch_get_dim(values_[i].get(), &rank), "reading an input's dimensions");
    const auto expected = static_cast<int64_t>(program.values[i].sizes.size());
    const std::string name = "run: inputs[" + std::to_string(i) + "] must ";
    if (device != aoti_torch_device_type_cpu()) {
      throw std::runtime_error(name + "be on the CPU: programs run nowhere else");
    }
    if (layout != aoti_torch_layout_strided()) {
      throw std::runtime_error(name + "be a dense tensor, got a sparse one");
    }
    if (rank != expected) {
      throw std::runtime_error(name + "have " + std::to_string(expected) + " dimensions, got " +
                               std::to_string(rank));
    }
  }
  compute_numbers();
  values_.resize(program.values.size());
  for (uint32_t i = 0; i < program.inputs; ++i) {
    Handle input = std::move(values_[i]);
    accept(i, std::move(input), "inputs");
  }
}

void Call::compute_numbers() {
  numbers_.reserve(program_.numbers.size());
  for (const auto& number : program_.numbers) {
    int64_t value = number.value;
    if (number.kind == Kind::kSize || number.kind == Kind::kStride) {
      int64_t* all = nullptr;
      const auto input = values_[number.a].get();
      check(number.kind == Kind::kSize ? aoti_torch_get_sizes(input, &all)
                                       : aoti_torch_get_strides(input, &all),
            "reading an input's sizes");
      value = all[number.b];
    } else if (number.kind != Kind::kConstant) {
      value = calculate(number.kind, numbers_[number.a], numbers_[number.b]);
    }
    numbers_.push_back(value);
  }
}

Call::Layout Call::layout_of(uint32_t index) const {
  const auto& value = program_.values[index];
  Layout found;
  found.rank = static_cast<int64_t>(value.sizes.size());
  found.numel = 1;
  for (size_t i = 0; i < value.sizes.size(); ++i) {
    found.sizes[i] = numbers_[value.sizes[i]];
    found.strides[i] = numbers_[value.strides[i]];
    found.numel = calculate(Kind::kMultiply, found.numel, found.sizes[i]);
  }
  found.offset = value.source == Source::kView ? numbers_[value.offset] : 0;
  return found;
}

// Keeps a tensor as a value. One that lies in memory in another order than the program says is copied.
void Call::accept(uint32_t index, Handle tensor, const char* what) {
  const Layout expected = layout_of(index);
  const auto name = [&] {
    return "run: " + std::string(what) +
           (index < program_.inputs ? "[" + std::to_string(index) + "]" : "") + " must ";
  };
  int32_t dtype = 0;
  int64_t rank = 0;
  int64_t* sizes = nullptr;
  int64_t* strides = nullptr;
  check(aoti_torch_get_dtype(tensor.get(), &dtype), "reading a dtype");
  check(aoti_torch_get_dim(tensor.get(), &rank), "reading dimensions");
  check(aoti_torch_get_sizes(tensor.get(), &sizes), "reading sizes");
  check(aoti_torch_get_strides(tensor.get(), &strides), "reading strides");
  if (dtype != program_.values[index].dtype) {
    throw std::runtime_error(name() + "be " + dtype_name(program_.values[index].dtype) + ", got " +
                             dtype_name(dtype));
  }
  if (rank != expected.rank || !std::equal(sizes, sizes + rank, expected.sizes)) {
    throw std::runtime_error(name() + "have shape " + shown(expected.sizes, expected.rank) +
                             ", got " + shown(sizes, rank));
  }
  bool same = true;
  for (int64_t i = 0; i < rank && expected.numel > 0; ++i) {
    same = same && (sizes[i] == 1 || strides[i] == expected.strides[i]);
  }
  if (!same) {
    reach(rank, expected.sizes, expected.strides);
    AtenTensorHandle made = nullptr;
    check(aoti_torch_empty_strided(rank, expected.sizes, expected.strides, dtype,
                                   aoti_torch_device_type_cpu(), 0, &made),
          "allocating a value");
    Handle copy(made);
    check(aoti_torch_copy_(copy.get(), tensor.get(), 0), "copying a value");
    tensor = std::move(copy);
  }
  values_[index] = std::move(tensor);
}

Handle Call::view_of(uint32_t index) {
  const auto& value = program_.values[index];
  const Layout base = layout_of(value.of);
  const Layout view = layout_of(index);
  const int64_t last = reach(view.rank, view.sizes, view.strides);
  const int64_t limit = reach(base.rank, base.sizes, base.strides);
  const bool fits = last < 0 ? view.offset <= limit + 1
                             : calculate(Kind::kAdd, view.offset, last) <= limit;
  if (view.offset < 0 || !fits) {
    throw std::runtime_error("run: a view of the program reaches beyond what it shows");
  }
  AtenTensorHandle made = nullptr;
  check(aoti_torch__reinterpret_tensor(values_[value.of].get(), view.rank, view.sizes, view.strides,
                                       view.offset, &made),
        "a view");
  return Handle(made);
}

// A tensor for a step, which becomes its owner.
Handle Call::argument_of(const Use& use) {
  const auto& value = program_.values[use.value];
  Handle& kept = values_[use.value];
  if (value.source == Source::kView && !kept) {
    kept = view_of(use.value);
  }
  if (use.last_base) {
    values_[value.of].reset();
  }
  return use.last ? std::move(kept) : kept.again();
}

StableIValue Call::list_of(const Argument& argument) {
  const bool tensors = argument.letter == 'L';
  const size_t count = tensors ? argument.values.size() : argument.integers.size();
  StableListHandle list = nullptr;
  check(torch_new_list_reserve_size(count, &list), "a list");
  for (size_t i = 0; i < count; ++i) {
    check(torch_list_push_back(list, tensors ? pack(argument_of(argument.values[i]).release())
                                             : pack(numbers_[argument.integers[i]])),
          "a list");
  }
  return pack(list);
}

void Call::push(StableIValue& place, const Argument& argument) {
  switch (argument.letter) {
    case 'T': place = pack(argument_of(argument.values[0]).release()); break;
    case 'O': place = boxed(pack(argument_of(argument.values[0]).release())); break;
    case 'L':
    case 'I': place = list_of(argument); break;
    case 'i': place = pack(numbers_[argument.integers[0]]); break;
    case 'N': place = boxed(pack(numbers_[argument.integers[0]])); break;
    case 'f': place = pack(argument.number); break;
    case 'F': place = boxed(pack(argument.number)); break;
    case 'b': place = pack(argument.integers[0] != 0); break;
    case 'd': place = boxed(pack(static_cast<ScalarType>(argument.integers[0]))); break;
    case 'm': place = boxed(pack(format_of(argument.integers[0]))); break;
    default: place = pack(std::nullopt); break;
  }
}

// Calls the operator of a step.
void Call::call(const Step& step) {
  const auto& callee = *step.callee;
  const size_t count = step.arguments.size();
  stack_.assign(std::max(count, step.results.size()), 0);
  for (size_t i = 0; i < count; ++i) {
    push(stack_[i], step.arguments[i]);
  }
  if (callee.call != nullptr) {
    callee.call(stack_.data(), count, step.results.size());
  } else if (torch_call_dispatcher(callee.name.c_str(), callee.overload.c_str(), stack_.data(),
                                   TORCH_ABI_VERSION) != AOTI_TORCH_SUCCESS) {
    throw std::runtime_error(callee.name + " failed: " + torch_error());
  }
  for (size_t i = 0; i < step.results.size(); ++i) {
    results_.push_back({step.results[i], Handle(to<AtenTensorHandle>(stack_[i]))});
  }
}

void Call::keep_results() {
  for (auto& made : results_) {
    if (made.value != kUnused) {
      accept(made.value, std::move(made.tensor), "a result");
    }
  }
  results_.clear();
}

Handle Call::take_output(size_t index) {
  const uint32_t output = program_.outputs[index];
  const bool is_view = program_.values[output].source == Source::kView;
  return is_view && !values_[output] ? view_of(output) : std::move(values_[output]);
}

void Call::run_steps() {
  const Step* step = program_.steps.data();
  const Step* const last = step + program_.steps.size();
  while (step != last) {
    const Step* failed = step;
    try {
      if (step->is_linear) {
        call_layers(failed, step + 1 + step->beside);
      } else {
        call(*step);
      }
      keep_results();
    } catch (const std::exception& error) {
      const auto& line = program_.texts[failed->text];
      throw std::runtime_error(std::string(error.what()) + "\nin a compiled program, from " + line);
    }
    step += 1 + step->beside;
  }
}

}  // namespace fusewheel::engine
