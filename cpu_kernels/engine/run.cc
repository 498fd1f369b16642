// The operators `run`, which executes the program that one of its arguments holds or names, and `bind`,
// which makes such a name.

#include <fusewheel/kernel.h>

#include "bound.h"
#include "call.h"

namespace fusewheel::engine {

namespace {

// A list that is an argument; what it holds is taken from it.
class List {
 public:
  explicit List(StableIValue list)
      : list_(torch::stable::detail::to<StableListHandle>(list)) {}
  ~List() { torch_delete_list(list_); }
  List(const List&) = delete;
  List& operator=(const List&) = delete;

  size_t size() const {
    size_t count = 0;
    check(torch_list_size(list_, &count), "reading a list");
    return count;
  }

  std::vector<Handle> tensors() const {
    const size_t count = size();
    std::vector<Handle> found;
    found.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      found.emplace_back(torch::stable::detail::to<AtenTensorHandle>((*this)[i]));
    }
    return found;
  }

  StableIValue operator[](size_t index) const {
    StableIValue item = 0;
    check(torch_list_get_item(list_, index, &item), "reading a list");
    return item;
  }

 private:
  StableListHandle list_;
};

void check_outputs(const List& outputs, const Program& program) {
  bool same = outputs.size() == program.declared.size();
  for (size_t i = 0; same && i < program.declared.size(); ++i) {
    same = torch::stable::detail::to<int64_t>(outputs[i]) == program.declared[i];
  }
  if (!same) {
    throw std::runtime_error("run: outputs must be what the program says of its outputs");
  }
}

// Registered as it is: the C++ classes for lists of tensors take twice the time.
void run(StableIValue* stack, uint64_t, uint64_t) {
  using torch::stable::detail::to;
  const Handle bytes(to<AtenTensorHandle>(stack[0]));
  const List given(stack[1]);
  const List outputs(stack[2]);
  const auto bound = find_program(bytes);
  const Program& program = *bound->program;
  check_outputs(outputs, program);
  const NoGradients guard;
  Call call(*bound, given.tensors());
  call.run_steps();
  StableListHandle results = nullptr;
  check(torch_new_list_reserve_size(program.outputs.size(), &results), "a list");
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    check(torch_list_push_back(results, pack(call.take_output(i).release())), "a list");
  }
  stack[0] = pack(results);
}

void bind(StableIValue* stack, uint64_t, uint64_t) {
  const Handle program(torch::stable::detail::to<AtenTensorHandle>(stack[0]));
  const List weights(stack[1]);
  stack[0] = pack(bind_program(program, weights.tensors()).release());
}

STABLE_TORCH_LIBRARY_IMPL(fusewheel, CPU, library) {
  library.impl("bind", bind);
  library.impl("run", run);
  signatures() += "bind(Tensor, List[Tensor]) -> Tensor\n";
  signatures() += "run(Tensor, List[Tensor], List[int]) -> List[Tensor]\n";
}

}  // namespace
}  // namespace fusewheel::engine
