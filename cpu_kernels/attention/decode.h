// attention_decode of arguments that are checked, in memory that the caller has.
#pragma once

#include <fusewheel/attention/attention_decode_args.h>

#include <vector>

namespace fusewheel {

class Decode {
 public:
  // Divides the work of `args`, whose lengths are set.
  explicit Decode(DecodeArgs& args);

  // So much memory is needed while it runs.
  int64_t bytes() const;

  void run(void* memory);

 private:
  int64_t part_count() const { return first_part_.back(); }

  DecodeArgs& args_;
  std::vector<int64_t> first_part_;
};

}  // namespace fusewheel
