// sum = x + residual, y = rms_norm(sum), row by row

#include <fusewheel/norm/add_rms_norm_args.h>

#include "add_rows.h"
#include "parallel.h"
#include "rms_norm.h"

namespace fusewheel::FUSEWHEEL_ISA {

void add_rms_norm_rows(const AddRmsNormArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.norm.dtype, [&](auto zero) {
    using T = decltype(zero);
    rms_norm_forward<T>(args.norm, begin, end, sum_of_rows<T>(args.add));
  });
}

void add_rms_norm_backward_chunks(const AddRmsNormBackwardArgs& args, int64_t begin,
                                  int64_t end) {
  for_dtype(args.norm.dtype, [&](auto zero) {
    using T = decltype(zero);
    rms_norm_backward<T>(args.norm, begin, end, plus_rows<T>(args.add));
  });
}

void add_rms_norm_launch(const AddRmsNormArgs& args) {
  parallel_rows(add_rms_norm_rows, args, args.norm.count, args.norm.size);
}

void add_rms_norm_backward_launch(const AddRmsNormBackwardArgs& args) {
  parallel_chunks(add_rms_norm_backward_chunks, args, args.norm.chunks,
                  args.norm.count * args.norm.size);
  parallel_columns(rms_norm_weight_columns, args.norm, args.norm.size, args.norm.chunks);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(add_rms_norm_launch, AddRmsNormArgs);
FUSEWHEEL_LAUNCHER(add_rms_norm_backward_launch, AddRmsNormBackwardArgs);
