// Memory of the exact size, for AddressSanitizer.
#pragma once

#include <fusewheel/geometry.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace fusewheel {

constexpr Dtype kDtypes[] = {Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat16, Dtype::kFloat64};

int64_t size_of(Dtype dtype) {
  return dtype == Dtype::kFloat64 ? 8 : dtype == Dtype::kFloat32 ? 4 : 2;
}
int64_t accumulate_size_of(Dtype dtype) { return dtype == Dtype::kFloat64 ? 8 : 4; }

// `count` elements that end where the memory ends, after `skipped` others.
class Buffer {
 public:
  Buffer(int64_t count, int64_t size, int64_t skipped, int fill)
      : bytes_(count * size),
        memory_(new unsigned char[bytes_ + skipped * size]),
        data_(memory_.get() + skipped * size) {
    std::memset(memory_.get(), fill, bytes_ + skipped * size);
  }

  void* data() const { return data_; }

  void expect_written(int64_t size, const char* what) const {
    for (int64_t i = 0; i < bytes_; i += size) {
      bool untouched = true;
      for (int64_t j = 0; j < size; ++j) {
        untouched = untouched && data_[i + j] == 0xff;
      }
      if (untouched) {
        std::printf("%s left element %lld unwritten\n", what, static_cast<long long>(i / size));
        std::exit(1);
      }
    }
  }

 private:
  int64_t bytes_;
  std::unique_ptr<unsigned char[]> memory_;
  unsigned char* data_;
};

}  // namespace fusewheel
