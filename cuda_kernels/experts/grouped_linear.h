// The functions that launch grouped products.
#pragma once

#include <fusewheel/experts/groups.h>

namespace fusewheel {

void grouped_linear_launch(const GroupedProductArgs&, Stream);
// x in the dtype of sums: float64 where y is, else float32.
void grouped_linear_blocks_launch(const GroupedProductArgs&, Stream);
void grouped_linear_backward_weight_launch(const GroupedGradientArgs&, Stream);

}  // namespace fusewheel
