"""spherical_harmonics has no derivative in forward mode, without an error

The tangent is lost: a later sum takes it for zero. The gradient in reverse mode is right.
"""

import sphericart.torch
import torch
from torch.autograd import forward_ad

points = torch.randn(4, 3, dtype=torch.float64)
with forward_ad.dual_level():
    dual = forward_ad.make_dual(points, torch.ones_like(points))
    y = torch.ops.sphericart_torch.spherical_harmonics(dual, 2)
    print("tangent:", forward_ad.unpack_dual(y).tangent)
