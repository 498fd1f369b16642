// The functions that launch grouped products.
#pragma once

#include <fusewheel/experts/groups.h>

namespace fusewheel {

void grouped_linear_launch(const GroupedProductArgs&, Stream);
void grouped_linear_backward_weight_launch(const GroupedGradientArgs&, Stream);

}  // namespace fusewheel
