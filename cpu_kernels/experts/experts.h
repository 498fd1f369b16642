// What is between and behind the products of a mixture's experts.
#pragma once

#include <fusewheel/geometry.h>

#include "isa.h"

namespace fusewheel {

// For each token the weighted sum of what its experts made of it.
struct SumPairsArgs {
  const void* pairs;      // [pairs, columns]
  const int64_t* places;  // [tokens, k], the row of each pair; -1 where there is none
  const void* weights;    // [tokens, k] in the accumulation type
  int64_t weights_stride;
  int64_t k;
  int64_t columns;
  Dtype dtype;  // of pairs and y
  void* y;      // [tokens, columns]
};

}  // namespace fusewheel

FUSEWHEEL_DECLARE(void sum_pairs(const SumPairsArgs&, int64_t begin, int64_t end));
FUSEWHEEL_DECLARE(void silu_mul_range(const ElementwiseArgs<3>&, int64_t begin, int64_t end));
FUSEWHEEL_DECLARE(void gelu_mul_range(const ElementwiseArgs<3>&, int64_t begin, int64_t end));
