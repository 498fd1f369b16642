// The experts of a mixture, with floating weights: two launches, one for each layer.

#include "experts_layers.h"

namespace fusewheel {

void experts_first_launch(const ExpertsFirstArgs& args, Stream stream) {
  for_dtype(args.layer.from_dtype, [&](auto zero) {
    using T = decltype(zero);
    for_floating_rows<T>(args.layer.weights, args.layer.from_dtype,
                         [&](const auto& weight) { launch_first<T>(args, weight, stream); });
  });
}

void experts_last_launch(const ExpertsLastArgs& args, Stream stream) {
  for_dtype(args.layer.from_dtype, [&](auto zero) {
    using T = decltype(zero);
    for_floating_rows<T>(args.layer.weights, args.layer.from_dtype,
                         [&](const auto& weight) { launch_last<T>(args, weight, stream); });
  });
}

}  // namespace fusewheel
