// One execution of a program.
#pragma once

#include <vector>

#include "bound.h"
#include "matmul/products.h"

namespace fusewheel::engine {

class Call {
 public:
  // Takes the inputs in front of the weights, checks both and computes all sizes.
  Call(const Bound& bound, std::vector<Handle> inputs);

  void run_steps();

  // An output, of which the caller becomes the owner.
  Handle take_output(size_t index);

  // For steps with pointers:

  int32_t dtype_of(uint32_t value) const { return program_.values[value].dtype; }
  Layout layout_of(uint32_t value) const {
    return engine::layout_of(program_, numbers_, value);
  }
  int64_t number(uint32_t index) const { return numbers_[index]; }

  // What a value's elements are read from.
  const void* data_of(uint32_t value);
  // Memory for a result.
  void* memory_for(uint32_t result);
  // The same, with its layout.
  void* memory_for(uint32_t result, const Layout& layout);
  // Memory for as long as the step runs. It is one piece: the next call takes it again.
  void* scratch(int64_t bytes);
  // A value as a tensor.
  const Handle& tensor_of(uint32_t value);
  // Keeps a tensor as a result.
  void keep(uint32_t result, Handle tensor) {
    if (result != kUnused) {
      accept(result, std::move(tensor), "a result");
    }
  }

 private:
  struct Made {
    uint32_t value;
    Handle tensor;
  };

  // The memory of a layer of the program.
  struct LayerMemory {
    const void* codes;
    const void* scales;
    const void* zeros;
    const void* bias;
  };

  const Handle& input(uint32_t index) const;
  const Handle* bound(uint32_t index) const;
  void check_input(uint32_t index) const;
  void put_in_order(uint32_t index);
  void take_weights();
  void compute_numbers();
  LayerMemory memory_of(const Layer& layer);
  void call(const Step& step);
  bool begin(const Step& step, WaitingProducts& products);
  void call_layers(const Step*& step, const Step* end);
  void keep_results();
  void free_arguments(const Step& step);
  void free(const Use& use);
  void push(StableIValue& place, const Argument& argument);
  StableIValue list_of(const Argument& argument);
  Handle argument_of(const Use& use);
  Layout view_layout(uint32_t value) const;
  Handle view_of(uint32_t value);
  Handle piece_of_arena(uint32_t value);
  bool lies_as_expected(uint32_t value, const Handle& tensor, const char* what) const;
  Handle copy_of(uint32_t value, const Handle& tensor) const;
  void accept(uint32_t value, Handle tensor, const char* what);

  const Program& program_;
  const std::vector<Handle>& weights_;  // the last inputs
  const uint32_t given_;                // how many inputs are in front of them
  std::vector<int64_t> numbers_;
  std::shared_ptr<const ArenaPlan> plan_;
  Handle arena_;
  char* memory_ = nullptr;  // of the arena
  // A value has a tensor, or memory, or both. A weight has one here only if it had to be copied.
  std::vector<Handle> values_;
  std::vector<const char*> data_;
  std::vector<LayerMemory> layers_;  // of the program's layers
  std::unique_ptr<char[]> scratch_;
  int64_t scratch_bytes_ = 0;
  std::vector<StableIValue> stack_;
  std::vector<Made> results_;  // not yet values
};

}  // namespace fusewheel::engine
