// What profilers such as Nsight Systems show above kernels: a range (NVTX) for each operator.
#pragma once

#include <nvtx3/nvToolsExt.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace fusewheel {

// FUSEWHEEL_NVTX, read once: without a profiler a range costs little, but not nothing.
inline bool has_ranges() {
  static const bool has = [] {
    const char* value = std::getenv("FUSEWHEEL_NVTX");
    const std::string text = value == nullptr ? "0" : value;
    if (text != "0" && text != "1") {
      throw std::runtime_error("FUSEWHEEL_NVTX must be 0 or 1, got '" + text + "'");
    }
    return text == "1";
  }();
  return has;
}

// Lasts as long as what an operator does on the CPU: its launches, and PyTorch's between them.
class Range {
 public:
  explicit Range(const char* op) : exists_(has_ranges()) {
    if (exists_) {
      nvtxRangePushA((std::string("fusewheel::") + op).c_str());
    }
  }
  ~Range() {
    if (exists_) {
      nvtxRangePop();
    }
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  bool exists_;
};

}  // namespace fusewheel
