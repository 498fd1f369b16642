"""jagged_to_padded_dense reads other memory if offsets say more than there is

Offsets are not compared with the number of values; a caller has to know that they fit. Here the
memory behind the values holds other values.
"""

import fbgemm_gpu
import torch

values = torch.arange(6.0).reshape(3, 2)
one_row, three = values[:1], [torch.tensor([0, 3])]
dense = torch.ops.fbgemm.jagged_to_padded_dense(one_row, three, [3], 0.0)
print("given the row [0, 1]:", dense.tolist())
