#include "bound.h"

#include <fusewheel/export.h>

#include <cstring>
#include <list>
#include <mutex>
#include <random>
#include <unordered_map>

#if defined(__ELF__)
// torch has it since 2.11; weak, so that older ones load the library.
extern "C" __attribute__((weak)) AOTITorchError torch_from_blob(
    void* data, int64_t rank, const int64_t* sizes, const int64_t* strides, int64_t offset,
    int32_t dtype, int32_t device, int32_t device_index, AtenTensorHandle* made, int32_t layout,
    const uint8_t* metadata, int64_t metadata_size, void (*deleter)(void* data, void* context),
    void* context);
#endif

namespace fusewheel::engine {

namespace {

// What a tensor holds that names a program with weights.
struct Name {
  char magic[8];
  uint64_t number;
};

constexpr char kMagic[] = "FUSEBIND";

bool can_bind() {
#if defined(__ELF__)
  return torch_from_blob != nullptr;
#else
  return false;
#endif
}

bool is_name(const void* bytes, size_t size) {
  return size == sizeof(Name) && std::memcmp(bytes, kMagic, sizeof(Name::magic)) == 0;
}

// Programs that hold weights.
class Names {
 public:
  uint64_t add(std::shared_ptr<const Bound> bound) {
    const std::lock_guard<std::mutex> guard(lock_);
    named_.emplace(++last_, std::move(bound));
    return last_;
  }

  std::shared_ptr<const Bound> find(uint64_t number) {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = named_.find(number);
    if (found == named_.end()) {
      throw std::runtime_error(
          "run: program names weights that are not held: the tensor that `bind` returned is gone, or "
          "was made in another process");
    }
    return found->second;
  }

  void forget(uint64_t number) {
    std::shared_ptr<const Bound> last;  // freed when others may take the lock
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = named_.find(number);
    last = std::move(found->second);
    named_.erase(found);
  }

  // Never destroyed: tensors are deleted after the end of `main` too.
  static Names& all() {
    static Names* const made = new Names;
    return *made;
  }

 private:
  std::mutex lock_;
  std::unordered_map<uint64_t, std::shared_ptr<const Bound>> named_;
  // A name that was saved means nothing in another process.
  uint64_t last_ = std::random_device()() * uint64_t{1} << 32;
};

// Programs that were read before. A program may lie in a tensor that somebody has written to since,
// so its bytes are compared.
class Programs {
 public:
  std::shared_ptr<const Bound> find(const uint8_t* bytes, size_t size) {
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
    Bound read{read_program(entry.bytes.data(), size), {}};
    entry.program = std::make_shared<const Bound>(std::move(read));
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
    std::shared_ptr<const Bound> program;
  };

  std::mutex lock_;
  std::list<Entry> entries_;  // the last one used first
};

// Memory for the name of a program, whose weights are freed with it.
Handle named_tensor(uint64_t number) {
#if defined(__ELF__)
  auto name = std::make_unique<Name>(Name{{}, number});
  std::memcpy(name->magic, kMagic, sizeof(name->magic));
  const auto forget = [](void* data, void* context) {
    Names::all().forget(reinterpret_cast<uintptr_t>(context));
    delete static_cast<Name*>(data);
  };
  const int64_t size = sizeof(Name);
  const int64_t stride = 1;
  AtenTensorHandle made = nullptr;
  check(torch_from_blob(name.get(), 1, &size, &stride, 0, aoti_torch_dtype_uint8(),
                        aoti_torch_device_type_cpu(), -1, &made, aoti_torch_layout_strided(), nullptr,
                        0, forget, reinterpret_cast<void*>(number)),
        "making a tensor");
  name.release();  // the tensor deletes it
  return Handle(made);
#else
  (void)number;
  return {};
#endif
}

}  // namespace

std::shared_ptr<const Bound> find_program(const Handle& tensor) {
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
  if (is_name(bytes, static_cast<size_t>(size))) {
    Name name;
    std::memcpy(&name, bytes, sizeof(name));
    return Names::all().find(name.number);
  }
  return programs.find(static_cast<const uint8_t*>(bytes), static_cast<size_t>(size));
}

Handle bind_program(const Handle& tensor, std::vector<Handle> weights) {
  if (!can_bind()) {
    throw std::runtime_error("bind: needs torch 2.11 or newer, on Linux");
  }
  const auto found = find_program(tensor);
  if (!found->weights.empty()) {
    throw std::runtime_error("bind: program must hold no weights yet");
  }
  if (weights.size() > found->program->inputs) {
    throw std::runtime_error("bind: weights must be inputs of the program, which has " +
                             std::to_string(found->program->inputs) + ", got " +
                             std::to_string(weights.size()));
  }
  Bound bound{found->program, std::move(weights)};
  const uint64_t number = Names::all().add(std::make_shared<const Bound>(std::move(bound)));
  try {
    return named_tensor(number);
  } catch (...) {
    Names::all().forget(number);
    throw;
  }
}

}  // namespace fusewheel::engine

// Whether this torch lets a tensor hold more than its memory.
FUSEWHEEL_EXPORT int fusewheel_can_bind() { return fusewheel::engine::can_bind(); }
