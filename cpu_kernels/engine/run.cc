// The operator `run`: executes the program that one of its arguments holds.

#include <fusewheel/kernel.h>

#include <cstring>
#include <list>
#include <mutex>

#include "call.h"

namespace fusewheel::engine {

namespace {

// Programs that were read before. A program may lie in a tensor that somebody has written to since,
// so its bytes are compared.
class Programs {
 public:
  std::shared_ptr<const Program> find(const uint8_t* bytes, size_t size) {
    {
      const std::lock_guard<std::mutex> guard(lock_);
      for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
        if (entry->at == bytes && entry->bytes.size() == size &&
            std::memcmp(entry->bytes.data(), bytes, size) == 0) {
          entries_.splice(entries_.begin(), entries_, entry);
          return entries_.front().program;
        }
      }
    }
    // What is checked and what is kept are the same bytes, whoever writes to the tensor meanwhile.
    Entry entry{bytes, {bytes, bytes + size}, nullptr};
    entry.program = read_program(entry.bytes.data(), size);
    const std::lock_guard<std::mutex> guard(lock_);
    entries_.push_front(std::move(entry));
    if (entries_.size() > kMost) {
      entries_.pop_back();
    }
    return entries_.front().program;
  }

 private:
  static constexpr size_t kMost = 64;

  struct Entry {
    const void* at;
    std::vector<uint8_t> bytes;
    std::shared_ptr<const Program> program;
  };

  std::mutex lock_;
  std::list<Entry> entries_;  // the last one used first
};

std::shared_ptr<const Program> program_of(const Handle& tensor) {
  static Programs programs;
  int32_t dtype = 0;
  int32_t device = 0;
  int64_t rank = 0;
  int64_t size = 0;
  bool contiguous = false;
  check(aoti_torch_get_dtype(tensor.get(), &dtype), "reading the program");
  check(aoti_torch_get_device_type(tensor.get(), &device), "reading the program");
  check(aoti_torch_get_dim(tensor.get(), &rank), "reading the program");
  check(aoti_torch_get_numel(tensor.get(), &size), "reading the program");
  check(aoti_torch_is_contiguous(tensor.get(), &contiguous), "reading the program");
  if (dtype != aoti_torch_dtype_uint8() || rank != 1 || !contiguous ||
      device != aoti_torch_device_type_cpu()) {
    throw std::runtime_error("run: program must be a contiguous uint8 tensor [bytes] on the CPU");
  }
  const void* bytes = nullptr;
  check(torch_get_const_data_ptr(tensor.get(), &bytes), "reading the program");
  return programs.find(static_cast<const uint8_t*>(bytes), static_cast<size_t>(size));
}

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
  std::vector<Handle> inputs;
  const List given(stack[1]);
  const List outputs(stack[2]);
  inputs.reserve(given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    inputs.emplace_back(to<AtenTensorHandle>(given[i]));
  }
  const auto program = program_of(bytes);
  check_outputs(outputs, *program);
  const NoGradients guard;
  Call call(*program, std::move(inputs));
  call.run_steps();
  StableListHandle results = nullptr;
  check(torch_new_list_reserve_size(program->outputs.size(), &results), "a list");
  for (size_t i = 0; i < program->outputs.size(); ++i) {
    check(torch_list_push_back(results, pack(call.take_output(i).release())), "a list");
  }
  stack[0] = pack(results);
}

STABLE_TORCH_LIBRARY_IMPL(fusewheel, CPU, library) {
  library.impl("run", run);
  signatures() += "run(Tensor, List[Tensor], List[int]) -> List[Tensor]\n";
}

}  // namespace
}  // namespace fusewheel::engine
