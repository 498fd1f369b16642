// Linear layers of few rows, such as one new token of each text: several of the same input at once, and
// without a tensor for each argument where their values are as most models have them.

#include <algorithm>

#include "call.h"
#include "dtypes.h"

namespace fusewheel::engine {

namespace {

// A weight in stored blocks of which each row is one piece of memory. False where `kind` is none, or the
// blocks are no such weight.
bool describe_blocks(const Layout& blocks, int64_t kind, LinearWeight& weight) {
  weight.blocks = block_format(static_cast<BlockKind>(kind));
  const int64_t bytes = weight.blocks.bytes;
  if (bytes == 0 || static_cast<int64_t>(weight.blocks.kind) != kind || blocks.rank != 3 ||
      blocks.numel == 0 || blocks.sizes[2] != bytes || blocks.strides[2] != 1 ||
      (blocks.sizes[1] > 1 && blocks.strides[1] != bytes)) {
    return false;
  }
  weight.rows = blocks.sizes[0];
  weight.columns = calculate(Kind::kMultiply, blocks.sizes[1], weight.blocks.weights);
  weight.stride = blocks.strides[0];
  return true;
}

// Likewise a matrix of numbers or of codes.
bool describe_matrix(const Layout& codes, LinearWeight& weight) {
  if (codes.rank != 2 || codes.numel == 0 || codes.strides[1] != 1) {
    return false;
  }
  weight.rows = codes.sizes[0];
  weight.columns = codes.sizes[1];
  weight.stride = codes.strides[0];
  return true;
}

}  // namespace

bool describe_layer(const Program& program, const std::vector<int64_t>& numbers, const Step& step,
                    Layer& layer) {
  const auto& given = step.arguments;
  const auto value = [&](size_t i) { return given[i].values[0].value; };
  const auto dtype = [&](size_t i) { return program.values[value(i)].dtype; };
  const auto layout = [&](uint32_t index) {
    const Layout found = layout_of(program, numbers, index);
    reach(found);  // refuses negative sizes
    return found;
  };
  const bool floating = step.kind == WeightKind::kFloating;
  const bool blocks = step.kind == WeightKind::kBlocks;
  if (step.results[0] == kUnused) {
    return false;
  }
  const Layout codes = layout(value(1));
  layer = {{}, 0, 0, value(0), value(1), kUnused, kUnused, kUnused, step.results[0], false};
  LinearWeight& weight = layer.weight;
  weight.kind = step.kind;
  size_t next = 2;
  if (blocks) {
    if (dtype(1) != aoti_torch_dtype_uint8() ||
        !describe_blocks(codes, numbers[given[next].integers[0]], weight)) {
      return false;
    }
    ++next;
  } else if (!describe_matrix(codes, weight)) {
    return false;
  } else if (floating) {
    if (!find_dtype(dtype(1), weight.dtype)) {
      return false;
    }
  } else {
    const bool int4 = step.kind == WeightKind::kInt4;
    layer.scales = value(next);
    const Layout scales = layout(layer.scales);
    const int32_t stored = int4 ? aoti_torch_dtype_uint8() : aoti_torch_dtype_int8();
    const bool ranked = scales.rank == 2 || (scales.rank == 1 && !int4);
    if (dtype(1) != stored || !find_dtype(dtype(next), weight.scale_dtype) || !ranked ||
        scales.sizes[0] != weight.rows || scales.numel == 0 || !scales.is_contiguous()) {
      return false;
    }
    weight.groups = scales.rank == 2 ? scales.sizes[1] : 1;
    ++next;
    if (int4) {
      layer.zeros = value(next);
      const Layout zeros = layout(layer.zeros);
      weight.columns = calculate(Kind::kMultiply, weight.columns, 2);
      weight.group_size = numbers[given[next + 1].integers[0]];
      const bool known =
          weight.group_size == 32 || weight.group_size == 64 || weight.group_size == 128;
      if (!known || weight.columns % weight.group_size != 0 ||
          weight.groups != weight.columns / weight.group_size ||
          dtype(next) != dtype(next - 1) || zeros.rank != 2 ||
          !std::equal(zeros.sizes, zeros.sizes + 2, scales.sizes) || !zeros.is_contiguous()) {
        return false;
      }
      next += 2;
    } else {
      weight.group_size = weight.columns / weight.groups;
      if (weight.columns % weight.groups != 0 ||
          (weight.groups > 1 && weight.group_size % 32 != 0)) {
        return false;
      }
    }
  }
  const int32_t number = aoti_torch_dtype_float32();
  const Layout x = layout(layer.x);
  const Layout y = layout(layer.y);
  if (dtype(0) != number || x.last_size() != weight.columns || !find_stride(x, layer.stride) ||
      program.values[layer.y].dtype != number || y.rank != x.rank || y.last_size() != weight.rows ||
      !std::equal(x.sizes, x.sizes + x.rank - 1, y.sizes) || !y.is_contiguous()) {
    return false;
  }
  layer.rows = x.numel / weight.columns;
  if (given[next].letter != '-') {
    layer.bias = value(next);
    const Layout bias = layout(layer.bias);
    if (dtype(next) != number || bias.rank != 1 || bias.sizes[0] != weight.rows ||
        !bias.is_contiguous()) {
      return false;
    }
  }
  layer.dynamic = !floating && !blocks && given[next + 1].integers[0] != 0;
  return true;
}

void mark_layers(Program& program) {
  std::vector<int64_t> numbers;
  for (const auto& number : program.numbers) {
    numbers.push_back(number.value);
  }
  const auto constant = [&](uint32_t number) {
    return program.numbers[number].kind == Kind::kConstant;
  };
  const auto is_known = [&](uint32_t index) {
    const auto& value = program.values[index];
    return std::all_of(value.sizes.begin(), value.sizes.end(), constant) &&
           std::all_of(value.strides.begin(), value.strides.end(), constant);
  };
  for (auto& step : program.steps) {
    step.layer = kUnused;
    bool known = step.is_linear && step.results[0] != kUnused && is_known(step.results[0]);
    for (size_t i = 0; known && i < step.arguments.size(); ++i) {
      const auto& argument = step.arguments[i];
      for (const auto& use : argument.values) {
        known = known && is_known(use.value) &&
                (i == 0 || program.values[use.value].of < program.inputs);
      }
      known = known && (argument.letter != 'i' || constant(argument.integers[0]));
    }
    Layer layer;
    if (known && describe_layer(program, numbers, step, layer)) {
      step.layer = static_cast<uint32_t>(program.layers.size());
      program.layers.push_back(layer);
    }
  }
}

Call::LayerMemory Call::memory_of(const Layer& layer) {
  const auto data = [&](uint32_t value) { return value == kUnused ? nullptr : data_of(value); };
  return {data(layer.codes), data(layer.scales), data(layer.zeros), data(layer.bias)};
}

// Lets a layer wait. False where its operator has to be called, which also says what is wrong.
bool Call::begin(const Step& step, WaitingProducts& products) {
  const bool known = step.layer != kUnused;
  Layer layer;
  if (known) {
    layer = program_.layers[step.layer];
  } else if (!describe_layer(program_, numbers_, step, layer)) {
    return false;
  }
  LinearWeight& weight = layer.weight;
  if (!WaitingProducts::can_add(weight, layer.rows, layer.dynamic)) {
    return false;
  }
  const LayerMemory memory = known ? layers_[step.layer] : memory_of(layer);
  weight.data = memory.codes;
  weight.scales = memory.scales;
  weight.zeros = memory.zeros;
  products.add(static_cast<const float*>(data_of(layer.x)), layer.rows, layer.stride, weight,
               static_cast<const float*>(memory.bias),
               static_cast<float*>(memory_for(layer.y)), layer.dynamic);
  return true;
}

void Call::free(const Use& use) {
  if (use.last) {
    values_[use.value].reset();
  }
  if (use.last_base) {
    values_[program_.values[use.value].of].reset();
  }
}

void Call::free_arguments(const Step& step) {
  for (const auto& argument : step.arguments) {
    for (const auto& use : argument.values) {
      free(use);
    }
  }
}

// Calls layers of the same input; `step` is the one that is called.
void Call::call_layers(const Step*& step, const Step* end) {
  WaitingProducts products;
  const Step* const first = step;
  for (; step != end; ++step) {
    if (!begin(*step, products)) {
      if (products.borrows()) {
        products.run();  // the operator may free what these read
      }
      call(*step);
    }
  }
  step = first;
  products.run();
  for (const Step* done = first; done != end; ++done) {
    if (done->layer != kUnused) {
      free(done->arguments[0].values[0]);  // the inputs are kept until the end
    } else {
      free_arguments(*done);
    }
  }
}

}  // namespace fusewheel::engine
