// The keys that a boolean mask shows to one query of each sequence, where they are one run: texts with
// padding in front of them, a window, or a cache that is not full.
#pragma once

#include <fusewheel/attention/attention_decode_args.h>

#include <limits>
#include <numeric>
#include <vector>

#include "layout.h"

namespace fusewheel::engine {

class SeenKeys {
 public:
  // Reads a mask [batch or 1, 1, 1, keys]. False if it has another shape, or shows more than one run.
  bool read(const uint8_t* mask, const Layout& layout, int64_t batch, int64_t keys) {
    if (layout.rank != 4 || (layout.sizes[0] != batch && layout.sizes[0] != 1) ||
        layout.sizes[1] != 1 || layout.sizes[2] != 1 || layout.sizes[3] != keys ||
        (keys > 1 && layout.strides[3] != 1)) {
      return false;
    }
    for (int64_t i = 0; i < batch; ++i) {
      const uint8_t* row = mask + (layout.sizes[0] == 1 ? 0 : i * layout.strides[0]);
      int64_t begin = 0;
      while (begin < keys && row[begin] == 0) {
        ++begin;
      }
      int64_t end = keys;
      while (end > begin && row[end - 1] == 0) {
        --end;
      }
      int64_t seen = 0;
      for (int64_t key = begin; key < end; ++key) {
        seen += row[key] != 0;
      }
      if (seen != end - begin) {
        return false;
      }
      begins_.push_back(begin);
      counts_.push_back(seen);
    }
    return true;
  }

  const int64_t* counts() const { return counts_.data(); }

  // Lets a page begin at any key, and finds those at which the runs begin. False where keys and values
  // need pages of different numbers.
  bool find_pages(DecodeArgs& args, std::vector<int32_t>& pages) const {
    // Between sequences. Pages become as short as these and the keys allow.
    const int64_t k_step = args.k.page;
    const int64_t v_step = args.v.page;
    args.k.page = std::gcd(k_step, args.k.key);
    args.v.page = std::gcd(v_step, args.v.key);
    if (args.k.page == 0 || args.v.page == 0) {
      return false;
    }
    for (size_t i = 0; i < begins_.size(); ++i) {
      const auto sequence = static_cast<int64_t>(i);
      const int64_t page = (sequence * k_step + begins_[i] * args.k.key) / args.k.page;
      const int64_t other = (sequence * v_step + begins_[i] * args.v.key) / args.v.page;
      if (page != other || page > std::numeric_limits<int32_t>::max()) {
        return false;
      }
      pages.push_back(static_cast<int32_t>(page));
    }
    return true;
  }

 private:
  std::vector<int64_t> begins_;
  std::vector<int64_t> counts_;
};

}  // namespace fusewheel::engine
