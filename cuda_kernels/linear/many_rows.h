// Products of many rows with a weight that is stored as codes or in blocks.
#pragma once

#include <fusewheel/aten.h>

#include "args.h"

namespace fusewheel {

// y = x * transposed weight + bias or, backward, x * weight, by tensor cores: returns whether it could. x
// and y are in one half type then. `like` says where memory is taken. It is a product of groups, of which
// there is one: see experts/grouped_linear.cc.
bool linear_decoded_tensor(const char* op, const LinearArgs&, bool backward, const Tensor& like,
                           Stream);

}  // namespace fusewheel
