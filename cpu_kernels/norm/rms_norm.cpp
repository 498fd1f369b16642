// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), row by row

#include "parallel.h"
#include "rms_norm.h"

namespace fusewheel::FUSEWHEEL_ISA {

void rms_norm_rows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    rms_norm_forward<T>(args, begin, end, own_rows<T>(args));
  });
}

void rms_norm_backward_chunks(const RmsNormBackwardArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    rms_norm_backward<decltype(zero)>(args, begin, end, as_it_is);
  });
}

void rms_norm_weight_columns(const RmsNormBackwardArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    sum_chunks<decltype(zero)>(args.partials, args.grad_weight, args.chunks, args.size, begin, end);
  });
}

void rms_norm_launch(const RmsNormArgs& args) {
  parallel_rows(rms_norm_rows, args, args.count, args.size);
}

void rms_norm_backward_launch(const RmsNormBackwardArgs& args) {
  parallel_chunks(rms_norm_backward_chunks, args, args.chunks, args.count * args.size);
  parallel_columns(rms_norm_weight_columns, args, args.size, args.chunks);
}

}  // namespace fusewheel::FUSEWHEEL_ISA

FUSEWHEEL_LAUNCHER(rms_norm_launch, RmsNormArgs);
FUSEWHEEL_LAUNCHER(rms_norm_backward_launch, RmsNormBackwardArgs);
