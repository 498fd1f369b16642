// Pairs of a token and an expert, sorted by expert.
#pragma once

#include <fusewheel/allocate.h>

#include <vector>

namespace fusewheel {

struct Order {
  std::vector<int64_t> groups;  // the experts that some token chose
  std::vector<int64_t> ends;    // where the pairs of each of them end
  std::vector<int64_t> tokens;  // of each pair
  std::vector<int64_t> places;  // of each of the indices, its pair; -1 where it is none of an expert

  // The checked indices [tokens, k] of so many experts.
  Order(const Tensor& indices, int64_t experts) {
    const Tensor whole = as_contiguous(indices);
    const bool is_long = whole.scalar_type() == ScalarType::Long;
    const void* data = whole.const_data_ptr();
    const int64_t count = whole.numel();
    const int64_t k = whole.sizes()[1];
    const auto expert_of = [&](int64_t i) {
      return is_long ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
    };
    // How many pairs each expert has, then where its next one goes.
    std::vector<int64_t> next(static_cast<size_t>(experts));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t expert = expert_of(i);
      if (expert >= 0 && expert < experts) {
        ++next[static_cast<size_t>(expert)];
      }
    }
    int64_t pairs = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t own = next[static_cast<size_t>(e)];
      next[static_cast<size_t>(e)] = pairs;
      pairs += own;
      if (own > 0) {
        groups.push_back(e);
        ends.push_back(pairs);
      }
    }
    tokens.resize(static_cast<size_t>(pairs));
    places.resize(static_cast<size_t>(count), -1);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t expert = expert_of(i);
      if (expert >= 0 && expert < experts) {
        const int64_t place = next[static_cast<size_t>(expert)]++;
        places[static_cast<size_t>(i)] = place;
        tokens[static_cast<size_t>(place)] = i / k;
      }
    }
  }

  // Where the pairs of a group begin.
  int64_t begin(size_t group) const { return group == 0 ? 0 : ends[group - 1]; }
};

}  // namespace fusewheel
