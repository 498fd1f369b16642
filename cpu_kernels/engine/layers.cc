// Linear layers of one row, as a token of a text has them: several of the same input at once, and
// without a tensor for each argument where their values are as most models have them.

#include <algorithm>

#include "call.h"
#include "dtypes.h"

namespace fusewheel::engine {

// Lets a layer wait. False where its operator has to be called, which also says what is wrong.
bool Call::begin(const Step& step, WaitingProducts& products) {
  const auto& given = step.arguments;
  const auto value = [&](size_t i) { return given[i].values[0].value; };
  const auto dtype = [&](size_t i) { return program_.values[value(i)].dtype; };
  const bool floating = step.kind == WeightKind::kFloating;
  if (step.kind == WeightKind::kBlocks || step.results[0] == kUnused) {
    return false;
  }
  const Layout codes = layout_of(value(1));
  LinearWeight weight = {};
  weight.kind = step.kind;
  if (codes.rank != 2 || codes.numel == 0 || codes.strides[1] != 1) {
    return false;
  }
  weight.rows = codes.sizes[0];
  weight.columns = codes.sizes[1];
  weight.stride = codes.strides[0];
  size_t next = 2;
  if (floating) {
    if (!find_dtype(dtype(1), weight.dtype)) {
      return false;
    }
  } else {
    const bool int4 = step.kind == WeightKind::kInt4;
    const Layout scales = layout_of(value(next));
    const int32_t stored = int4 ? aoti_torch_dtype_uint8() : aoti_torch_dtype_int8();
    const bool ranked = scales.rank == 2 || (scales.rank == 1 && !int4);
    if (dtype(1) != stored || !find_dtype(dtype(next), weight.scale_dtype) || !ranked ||
        scales.sizes[0] != weight.rows || scales.numel == 0 || !scales.is_contiguous()) {
      return false;
    }
    weight.groups = scales.rank == 2 ? scales.sizes[1] : 1;
    ++next;
    if (int4) {
      const Layout zeros = layout_of(value(next));
      weight.columns *= 2;
      weight.group_size = numbers_[given[next + 1].integers[0]];
      const bool known =
          weight.group_size == 32 || weight.group_size == 64 || weight.group_size == 128;
      if (!known || weight.columns != weight.groups * weight.group_size ||
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
  const Layout x = layout_of(value(0));
  const Layout y = layout_of(step.results[0]);
  if (dtype(0) != number || x.rank == 0 || x.numel != weight.columns ||
      x.sizes[x.rank - 1] != weight.columns || x.strides[x.rank - 1] != 1 ||
      program_.values[step.results[0]].dtype != number || y.rank != x.rank ||
      y.numel != weight.rows || y.sizes[y.rank - 1] != weight.rows || !y.is_contiguous()) {
    return false;
  }
  const bool offset = given[next].letter != '-';
  if (offset) {
    const Layout bias = layout_of(value(next));
    if (dtype(next) != number || bias.rank != 1 || bias.sizes[0] != weight.rows ||
        !bias.is_contiguous()) {
      return false;
    }
  }
  const bool dynamic = !floating && given[next + 1].integers[0] != 0;
  if (!WaitingProducts::can_add(weight, dynamic)) {
    return false;
  }
  weight.data = data_of(value(1));
  weight.scales = floating ? nullptr : data_of(value(2));
  weight.zeros = step.kind == WeightKind::kInt4 ? data_of(value(3)) : nullptr;
  products.add(static_cast<const float*>(data_of(value(0))), weight,
               offset ? static_cast<const float*>(data_of(value(next))) : nullptr,
               static_cast<float*>(memory_for(step.results[0], y)), dynamic);
  return true;
}

void Call::free_arguments(const Step& step) {
  for (const auto& argument : step.arguments) {
    for (const auto& use : argument.values) {
      if (use.last) {
        values_[use.value].reset();
      }
      if (use.last_base) {
        values_[program_.values[use.value].of].reset();
      }
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
    free_arguments(*done);
  }
}

}  // namespace fusewheel::engine
