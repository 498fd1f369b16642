// One execution of a program.
#pragma once

#include <vector>

#include "handles.h"
#include "matmul/products.h"
#include "program.h"

namespace fusewheel::engine {

class Call {
 public:
  // Takes the inputs, checks them and computes all sizes.
  Call(const Program& program, std::vector<Handle> inputs);

  void run_steps();

  // An output, of which the caller becomes the owner.
  Handle take_output(size_t index);

 private:
  struct Layout {
    int64_t rank;
    int64_t sizes[64];
    int64_t strides[64];
    int64_t offset;
    int64_t numel;

    bool is_contiguous() const;
  };

  struct Made {
    uint32_t value;
    Handle tensor;
  };

  void compute_numbers();
  Layout layout_of(uint32_t value) const;
  void call(const Step& step);
  bool begin(const Step& step, WaitingProducts& products);
  void call_layers(const Step*& step, const Step* end);
  const void* data_of(const Use& use);
  void keep_results();
  void free_arguments(const Step& step);
  void push(StableIValue& place, const Argument& argument);
  StableIValue list_of(const Argument& argument);
  Handle argument_of(const Use& use);
  Handle view_of(uint32_t value);
  void accept(uint32_t value, Handle tensor, const char* what);

  const Program& program_;
  std::vector<Handle> values_;
  std::vector<int64_t> numbers_;
  std::vector<StableIValue> stack_;
  std::vector<Made> results_;  // not yet values
};

}  // namespace fusewheel::engine
