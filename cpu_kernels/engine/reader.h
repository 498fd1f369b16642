// Reads numbers from bytes that may be damaged: whatever is not there is an error.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fusewheel::engine {

[[noreturn]] inline void damaged(const std::string& what) {
  throw std::runtime_error("run: the program is damaged: " + what);
}

// Programs are little-endian, as all processors are that fusewheel is built for.
class Reader {
 public:
  Reader(const uint8_t* data, size_t size) : at_(data), left_(size) {}

  template <typename Number>
  Number take() {
    Number number;
    std::memcpy(&number, bytes(sizeof(Number)), sizeof(Number));
    return number;
  }

  // How many items follow, each of at least `size` bytes: so many are really there.
  uint32_t count(size_t size) {
    const auto number = take<uint32_t>();
    if (number > left_ / size) {
      damaged("it says that " + std::to_string(number) + " items follow where " +
              std::to_string(left_) + " bytes are left");
    }
    return number;
  }

  std::string_view text() {
    const auto size = take<uint32_t>();
    return {reinterpret_cast<const char*>(bytes(size)), size};
  }

  Reader part(size_t size) { return {bytes(size), size}; }

  size_t left() const { return left_; }

 private:
  const uint8_t* bytes(size_t size) {
    if (size > left_) {
      damaged("it ends too early");
    }
    const uint8_t* here = at_;
    at_ += size;
    left_ -= size;
    return here;
  }

  const uint8_t* at_;
  size_t left_;
};

}  // namespace fusewheel::engine
