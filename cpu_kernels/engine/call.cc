#include "call.h"

#include <algorithm>

namespace fusewheel::engine {

namespace {

using torch::stable::detail::to;

// A value as an optional argument, which torch deletes.
StableIValue boxed(StableIValue value) { return pack(new StableIValue(value)); }

torch::headeronly::MemoryFormat format_of(uint32_t code) {
  return code == 0 ? torch::headeronly::MemoryFormat::Contiguous
                   : torch::headeronly::MemoryFormat::Preserve;
}

}  // namespace

Call::Call(const Bound& bound, std::vector<Handle> inputs)
    : program_(*bound.program),
      weights_(bound.weights),
      given_(program_.inputs - static_cast<uint32_t>(weights_.size())),
      values_(std::move(inputs)) {
  if (values_.size() != given_) {
    throw std::runtime_error("run: inputs must be the " + std::to_string(given_) +
                             " tensors of the program" + (weights_.empty() ? "" : " without its weights") +
                             ", got " + std::to_string(values_.size()));
  }
  values_.resize(program_.values.size());
  data_.resize(program_.values.size());
  for (uint32_t i = 0; i < given_; ++i) {
    check_input(i);
  }
  compute_numbers();
  for (uint32_t i = 0; i < given_; ++i) {
    put_in_order(i);
  }
  take_weights();
  layers_.reserve(program_.layers.size());
  for (const Layer& layer : program_.layers) {
    layers_.push_back(memory_of(layer));
  }
  plan_ = program_.plans->find(program_, numbers_);
  if (plan_->bytes > 0) {
    arena_ = empty_tensor({1, {plan_->bytes}, {1}, 0, plan_->bytes}, aoti_torch_dtype_uint8());
    void* memory = nullptr;
    check(torch_get_mutable_data_ptr(arena_.get(), &memory), "memory");
    memory_ = static_cast<char*>(memory);
  }
}

const Handle& Call::input(uint32_t index) const {
  return index < given_ ? values_[index] : weights_[index - given_];
}

void Call::check_input(uint32_t index) const {
  const auto tensor = input(index).get();
  int32_t device = 0;
  int32_t layout = 0;
  int64_t rank = 0;
  check(aoti_torch_get_device_type(tensor, &device), "reading an input's device");
  check(aoti_torch_get_layout(tensor, &layout), "reading an input's layout");
  check(aoti_torch_get_dim(tensor, &rank), "reading an input's dimensions");
  const auto expected = static_cast<int64_t>(program_.values[index].sizes.size());
  const auto name = [index] { return "run: inputs[" + std::to_string(index) + "] must "; };
  if (device != aoti_torch_device_type_cpu()) {
    throw std::runtime_error(name() + "be on the CPU: programs run nowhere else");
  }
  if (layout != aoti_torch_layout_strided()) {
    throw std::runtime_error(name() + "be a dense tensor, got a sparse one");
  }
  if (rank != expected) {
    throw std::runtime_error(name() + "have " + std::to_string(expected) + " dimensions, got " +
                             std::to_string(rank));
  }
}

// Copies an input that lies in memory in another order than the program says.
void Call::put_in_order(uint32_t index) {
  if (!lies_as_expected(index, input(index), "inputs")) {
    values_[index] = copy_of(index, input(index));
  }
}

void Call::compute_numbers() {
  numbers_.reserve(program_.numbers.size());
  for (const auto& number : program_.numbers) {
    int64_t value = number.value;
    if (number.kind == Kind::kSize || number.kind == Kind::kStride) {
      int64_t* all = nullptr;
      const auto tensor = input(number.a).get();
      if (number.a >= given_) {
        check_input(number.a);
      }
      check(number.kind == Kind::kSize ? aoti_torch_get_sizes(tensor, &all)
                                       : aoti_torch_get_strides(tensor, &all),
            "reading an input's sizes");
      value = all[number.b];
    } else if (number.kind != Kind::kConstant) {
      value = calculate(number.kind, numbers_[number.a], numbers_[number.b]);
    }
    numbers_.push_back(value);
  }
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
    keep(made.value, std::move(made.tensor));
  }
  results_.clear();
}

Handle Call::take_output(size_t index) {
  const uint32_t output = program_.outputs[index];
  tensor_of(output);
  return std::move(values_[output]);
}

void Call::run_steps() {
  const Step* step = program_.steps.data();
  const Step* const last = step + program_.steps.size();
  while (step != last) {
    const Step* failed = step;
    try {
      if (step->is_linear) {
        call_layers(failed, step + 1 + step->beside);
      } else if (step->with_pointers != nullptr && step->with_pointers(*this, *step)) {
        free_arguments(*step);
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
