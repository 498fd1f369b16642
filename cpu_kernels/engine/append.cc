#include "append.h"

#include <fusewheel/check.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "call.h"
#include "pointers.h"

namespace fusewheel::engine {

namespace {

// The smallest number of free rows of a new room.
constexpr int64_t kLeast = 64;
// Of a trailer, and what it is aligned to. PyTorch aligns all its memory to so much.
constexpr int64_t kTrailer = 64;

// It lies in the last bytes of a room. Other memory may end with any bytes.
struct Trailer {
  uint64_t key;
  int64_t row_bytes;
  int64_t taken;
};

// A number that only a room at this address has in its trailer, and only in this process. So a copy
// of a room, in memory or in a file, is no room.
uint64_t key_of(const void* memory) {
  static const char place = 0;
  static const uint64_t secret =
      static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) ^
      reinterpret_cast<uintptr_t>(&place);
  uint64_t key = (reinterpret_cast<uintptr_t>(memory) ^ secret) * 0x9E3779B97F4A7C15u;
  key = (key ^ key >> 32) * 0xD6E8FEB86659FD93u;
  return key ^ key >> 32;
}

int64_t product(int64_t a, int64_t b) { return calculate(Kind::kMultiply, a, b); }

// A tensor [B, H, rows, D].
struct Rows {
  // Of rows that need no tensor.
  Rows(const Layout& layout, int32_t number, const void* memory)
      : dtype(number), sizes(layout.sizes), strides(layout.strides), data(memory) {
    finish(layout.rank);
  }

  explicit Rows(const Handle& tensor) : handle(tensor.get()) {
    int64_t rank = 0;
    check(aoti_torch_get_dim(handle, &rank), "reading dimensions");
    check(aoti_torch_get_dtype(handle, &dtype), "reading a dtype");
    int64_t* numbers = nullptr;
    check(aoti_torch_get_sizes(handle, &numbers), "reading sizes");
    sizes = numbers;
    check(aoti_torch_get_strides(handle, &numbers), "reading strides");
    strides = numbers;
    check(aoti_torch_get_storage_offset(handle, &offset), "reading an offset");
    check(torch_get_const_data_ptr(handle, &data), "reading a tensor");
    finish(rank);
  }

  int64_t count() const { return is_empty ? 0 : sizes[2]; }

  AtenTensorHandle handle = nullptr;
  int32_t dtype = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;
  int64_t offset = 0;
  const void* data = nullptr;
  bool is_empty = false;
  int64_t item = 0;
  int64_t head = 0;  // the elements of a row, of one sequence
  int64_t row = 0;   // of all sequences
  int64_t row_bytes = 0;

 private:
  void finish(int64_t rank) {
    is_empty = rank == 1 && sizes[0] == 0;
    if (rank != 4 && !is_empty) {
      throw std::runtime_error("append: caches must have 4 dimensions, got " + std::to_string(rank));
    }
    item = static_cast<int64_t>(aoti_torch_dtype_element_size(dtype));
    if (!is_empty) {
      head = product(sizes[1], sizes[3]);
      row = product(sizes[0], head);
      row_bytes = product(row, item);
    }
  }
};

// How the rows of a room lie, as strides of a tensor [B, H, rows, D].
struct Strides {
  explicit Strides(const Rows& like)
      : dims{like.head, like.sizes[3], like.row, 1} {}
  int64_t dims[4];
};

void check_pair(const Rows& past, const Rows& added) {
  const auto shape = [](const Rows& rows) {
    return rows.is_empty ? std::string("[0]")
                         : describe(IntHeaderOnlyArrayRef(rows.sizes, size_t{4}));
  };
  bool same = !added.is_empty && past.dtype == added.dtype;
  for (const int dim : {0, 1, 3}) {
    same = same && (past.is_empty || past.sizes[dim] == added.sizes[dim]);
  }
  if (!same) {
    throw std::runtime_error(
        "append: the new rows must have the dtype of the cache, and its shape except for the number "
        "of rows: the cache is " + shape(past) + ", the new rows are " + shape(added));
  }
}

class Room {
 public:
  Room(char* memory, int64_t bytes, int64_t row_bytes)
      : memory_(memory), bytes_(bytes), row_bytes_(row_bytes) {}

  // The room in which `past` lies; nothing if that is other memory.
  static std::optional<Room> of(const Rows& past) {
    int64_t bytes = 0;
    check(aoti_torch_get_storage_size(past.handle, &bytes), "reading the size of a cache");
    if (past.data == nullptr || past.row == 0 || bytes < kTrailer || past.offset % past.row != 0) {
      return std::nullopt;  // PyTorch gives a tensor without elements no address
    }
    const Strides own(past);
    for (int dim = 0; dim < 4; ++dim) {
      if (past.sizes[dim] != 1 && past.strides[dim] != own.dims[dim]) {
        return std::nullopt;
      }
    }
    const char* data = static_cast<const char*>(past.data) - past.offset * past.item;
    Room room(const_cast<char*>(data), bytes, past.row_bytes);
    const bool aligned = bytes % kTrailer == 0 && reinterpret_cast<uintptr_t>(data) % kTrailer == 0;
    if (!aligned || room.trailer().key != key_of(data) ||
        room.trailer().row_bytes != room.row_bytes_) {
      return std::nullopt;
    }
    return room;
  }

  // Makes an empty room of new memory.
  void open() {
    trailer() = {key_of(memory_), row_bytes_, 0};
  }

  // Takes rows behind the first `end`, if they are free.
  bool take(int64_t end, int64_t count) {
    return count <= capacity() - end &&
           __atomic_compare_exchange_n(&trailer().taken, &end, end + count, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
  }

  void write(int64_t at, const Rows& rows) {
    if (rows.data == nullptr) {
      return;
    }
    char* to = memory_ + at * row_bytes_;
    const auto* from = static_cast<const char*>(rows.data);
    const int64_t size = rows.sizes[3];
    const bool whole = rows.strides[3] == 1 || size == 1;
    for (int64_t n = 0; n < rows.count(); ++n) {
      for (int64_t b = 0; b < rows.sizes[0]; ++b) {
        for (int64_t h = 0; h < rows.sizes[1]; ++h) {
          const char* row = from + (b * rows.strides[0] + h * rows.strides[1] +
                                    n * rows.strides[2]) * rows.item;
          for (int64_t i = 0; !whole && i < size; ++i) {
            std::memcpy(to + i * rows.item, row + i * rows.strides[3] * rows.item, rows.item);
          }
          if (whole) {
            std::memcpy(to, row, size * rows.item);
          }
          to += size * rows.item;
        }
      }
    }
  }

  // So that a saved cache holds nothing that was in this memory before.
  void clear(int64_t from) {
    std::memset(memory_ + from * row_bytes_, 0, bytes_ - from * row_bytes_);
  }

 private:
  Trailer& trailer() const { return *reinterpret_cast<Trailer*>(memory_ + bytes_ - kTrailer); }
  int64_t capacity() const { return row_bytes_ == 0 ? 0 : (bytes_ - kTrailer) / row_bytes_; }

  char* memory_;
  int64_t bytes_;
  int64_t row_bytes_;
};

// A tensor that shares the memory of another one until one of the two is written to.
Handle lazy_clone(const Handle& tensor) {
  StableIValue stack = pack(tensor.again().release());
  // Two threads must not turn the same memory into shared memory at once.
  static std::mutex lock;
  const std::lock_guard<std::mutex> guard(lock);
  check(torch_call_dispatcher("aten::_lazy_clone", "", &stack, TORCH_ABI_VERSION), "sharing a cache");
  return Handle(torch::stable::detail::to<AtenTensorHandle>(stack));
}

// All rows from the first one of `tensor` on.
Handle shown(const Handle& tensor, const Rows& like, int64_t count) {
  const int64_t sizes[] = {like.sizes[0], like.sizes[1], count, like.sizes[3]};
  AtenTensorHandle made = nullptr;
  check(aoti_torch__reinterpret_tensor(tensor.get(), 4, sizes, Strides(like).dims, 0, &made),
        "a view of a cache");
  return Handle(made);
}

// New memory for a room, as a tensor of one dimension.
Handle memory_for(const Rows& like, int64_t count) {
  const int64_t capacity = count + std::max(kLeast, count / 2);
  const int64_t bytes = product(capacity, like.row_bytes);
  const int64_t whole =
      calculate(Kind::kAdd, bytes, 2 * kTrailer - 1) / kTrailer * kTrailer / like.item;
  const int64_t one = 1;
  AtenTensorHandle made = nullptr;
  check(aoti_torch_empty_strided(1, &whole, &one, like.dtype, aoti_torch_device_type_cpu(), 0, &made),
        "allocating a cache");
  return Handle(made);
}

// A new room with all rows.
Handle moved(const Rows& past, const Rows& added, int64_t count) {
  Handle memory = memory_for(added, count);
  int64_t bytes = 0;
  void* data = nullptr;
  check(aoti_torch_get_storage_size(memory.get(), &bytes), "reading the size of a cache");
  check(torch_get_mutable_data_ptr(memory.get(), &data), "writing to a cache");
  Room room(static_cast<char*>(data), bytes, added.row_bytes);
  room.clear(count);
  room.open();
  room.take(0, count);
  room.write(0, past);
  room.write(past.count(), added);
  return memory;
}

// The two results.
std::pair<Handle, Handle> append(const Handle& cache, const Rows& added) {
  const Rows past(cache);
  check_pair(past, added);
  const int64_t count = calculate(Kind::kAdd, past.count(), added.count());
  if (auto room = Room::of(past)) {
    const int64_t end = past.offset / past.row + past.count();
    if (room->take(end, added.count())) {
      room->write(end, added);
      Handle rows = shown(lazy_clone(cache), added, count);
      Handle same = rows.again();
      return {std::move(rows), std::move(same)};
    }
  }
  const Handle memory = moved(past, added, count);
  return {shown(lazy_clone(memory), added, count), shown(memory, added, count)};
}

}  // namespace

void append_step(StableIValue* stack, uint64_t, uint64_t) {
  const Handle cache(torch::stable::detail::to<AtenTensorHandle>(stack[0]));
  const Handle more(torch::stable::detail::to<AtenTensorHandle>(stack[1]));
  auto [rows, kept] = append(cache, Rows(more));
  stack[0] = pack(rows.release());
  stack[1] = pack(kept.release());
}

bool append_with_pointers(Call& call, const Step& step) {
  const uint32_t added = step.value(1);
  const Layout layout = call.layout_of(added);
  auto [rows, kept] = append(call.tensor_of(step.value(0)),
                             Rows(layout, call.dtype_of(added), call.data_of(added)));
  call.keep(step.results[0], std::move(rows));
  call.keep(step.results[1], std::move(kept));
  return true;
}

}  // namespace fusewheel::engine
