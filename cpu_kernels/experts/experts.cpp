// The weighted sum of what a token's experts made of it.

#include "experts.h"

#include "simd/vec.h"

namespace fusewheel::FUSEWHEEL_ISA {

// In the order of a token's experts, rounded once.
void sum_pairs(const SumPairsArgs& args, int64_t begin, int64_t end) {
  for_dtype(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    using A = Accumulate<T>;
    for (int64_t token = begin; token < end; ++token) {
      const int64_t* places = args.places + token * args.k;
      const A* weights = static_cast<const A*>(args.weights) + token * args.weights_stride;
      T* y = static_cast<T*>(args.y) + token * args.columns;
      for_each_vector<A>(args.columns, [&](int64_t i, int64_t live) {
        Vec<A> sum = {};
        for (int64_t j = 0; j < args.k; ++j) {
          if (places[j] >= 0) {
            sum += weights[j] *
                   load(static_cast<const T*>(args.pairs) + places[j] * args.columns + i, live);
          }
        }
        store(y + i, sum, live);
      });
    }
  });
}

}  // namespace fusewheel::FUSEWHEEL_ISA
