// The values of a call: tensors, or places in memory.

#include <fusewheel/check.h>

#include <algorithm>

#include "call.h"

namespace fusewheel::engine {

namespace {

std::string shown(const int64_t* numbers, int64_t count) {
  return describe(IntHeaderOnlyArrayRef(numbers, static_cast<size_t>(count)));
}

std::string dtype_name(int32_t dtype) { return describe(static_cast<ScalarType>(dtype)); }

}  // namespace

// Whether a tensor lies in memory in the order that the program says of a value. Throws where it could
// not be that value.
bool Call::lies_as_expected(uint32_t index, const Handle& tensor, const char* what) const {
  const auto& value = program_.values[index];
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
  if (dtype != value.dtype) {
    throw std::runtime_error(name() + "be " + dtype_name(value.dtype) + ", got " + dtype_name(dtype));
  }
  bool fits = rank == static_cast<int64_t>(value.sizes.size());
  bool same = true;
  bool empty = false;
  for (int64_t i = 0; i < rank && fits; ++i) {
    fits = sizes[i] == numbers_[value.sizes[i]];
    same = same && (sizes[i] == 1 || strides[i] == numbers_[value.strides[i]]);
    empty = empty || sizes[i] == 0;
  }
  if (!fits) {
    const Layout expected = layout_of(index);
    throw std::runtime_error(name() + "have shape " + shown(expected.sizes, expected.rank) +
                             ", got " + shown(sizes, rank));
  }
  return same || empty;
}

// A tensor in the order that the program says.
Handle Call::copy_of(uint32_t index, const Handle& tensor) const {
  const Layout expected = layout_of(index);
  reach(expected);
  Handle copy = empty_tensor(expected, dtype_of(index));
  check(aoti_torch_copy_(copy.get(), tensor.get(), 0), "copying a value");
  return copy;
}

// Keeps a tensor as a value.
void Call::accept(uint32_t index, Handle tensor, const char* what) {
  const bool fits = lies_as_expected(index, tensor, what);
  values_[index] = fits ? std::move(tensor) : copy_of(index, tensor);
  data_[index] = nullptr;
}

// The weight that a value is, null if it is none.
const Handle* Call::bound(uint32_t index) const {
  const bool is_weight = index >= given_ && index < program_.inputs;
  return is_weight ? &weights_[index - given_] : nullptr;
}

// The layout of a view, which stays inside of what it shows.
Layout Call::view_layout(uint32_t index) const {
  const Layout base = layout_of(program_.values[index].of);
  const Layout view = layout_of(index);
  const int64_t last = reach(view);
  const int64_t limit = reach(base);
  const bool fits = last < 0 ? view.offset <= limit + 1
                             : calculate(Kind::kAdd, view.offset, last) <= limit;
  if (view.offset < 0 || !fits) {
    throw std::runtime_error("run: a view of the program reaches beyond what it shows");
  }
  return view;
}

Handle Call::view_of(uint32_t index) {
  const Layout view = view_layout(index);
  AtenTensorHandle made = nullptr;
  check(aoti_torch__reinterpret_tensor(tensor_of(program_.values[index].of).get(), view.rank,
                                       view.sizes, view.strides, view.offset, &made),
        "a view");
  return Handle(made);
}

Handle Call::piece_of_arena(uint32_t index) {
  const Layout layout = layout_of(index);
  AtenTensorHandle made = nullptr;
  check(aoti_torch__alloc_from_pool(arena_.get(), plan_->offsets[index], dtype_of(index),
                                    layout.rank, layout.sizes, layout.strides, &made),
        "a piece of memory");
  return Handle(made);
}

const Handle& Call::tensor_of(uint32_t index) {
  Handle& kept = values_[index];
  if (!kept) {
    if (const Handle* weight = bound(index)) {
      return *weight;
    }
    const bool is_view = program_.values[index].source == Source::kView;
    kept = is_view ? view_of(index) : piece_of_arena(index);
  }
  return kept;
}

const void* Call::data_of(uint32_t index) {
  if (data_[index] != nullptr) {
    return data_[index];
  }
  const auto& value = program_.values[index];
  const void* data = nullptr;
  if (values_[index] || bound(index) != nullptr) {
    check(torch_get_const_data_ptr(tensor_of(index).get(), &data), "reading a tensor");
  } else if (value.source == Source::kView) {
    const int64_t offset = view_layout(index).offset;
    const auto* base = static_cast<const char*>(data_of(value.of));
    data = base == nullptr
               ? base
               : base + offset * static_cast<int64_t>(aoti_torch_dtype_element_size(value.dtype));
  } else {
    data = memory_ + plan_->offsets[index];
  }
  data_[index] = static_cast<const char*>(data);
  return data;
}

void* Call::memory_for(uint32_t result) {
  const bool has_place = plan_->offsets[result] != kNowhere;
  return memory_for(result, has_place ? Layout{} : layout_of(result));
}

void* Call::memory_for(uint32_t result, const Layout& layout) {
  void* memory = nullptr;
  if (plan_->offsets[result] != kNowhere) {
    memory = memory_ + plan_->offsets[result];
  } else {
    values_[result] = empty_tensor(layout, dtype_of(result));
    check(torch_get_mutable_data_ptr(values_[result].get(), &memory), "writing a result");
  }
  return memory;
}

void* Call::scratch(int64_t bytes) {
  constexpr int64_t kLine = 64;
  if (scratch_bytes_ < bytes + kLine) {
    scratch_.reset();
    scratch_.reset(new char[static_cast<size_t>(bytes + kLine)]);
    scratch_bytes_ = bytes + kLine;
  }
  void* start = scratch_.get();
  size_t space = static_cast<size_t>(scratch_bytes_);
  return std::align(kLine, static_cast<size_t>(bytes), start, space);
}

// A tensor for a step, which becomes its owner.
Handle Call::argument_of(const Use& use) {
  const Handle& tensor = tensor_of(use.value);
  Handle& own = values_[use.value];
  Handle taken = use.last && own ? std::move(own) : tensor.again();
  if (use.last_base) {
    values_[program_.values[use.value].of].reset();
  }
  return taken;
}

}  // namespace fusewheel::engine
