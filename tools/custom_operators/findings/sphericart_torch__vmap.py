"""spherical_harmonics under vmap gives another shape, without an error

The operator has no batching rule, and its kernel treats the batch as points.
"""

import sphericart.torch
import torch

harmonics = torch.ops.sphericart_torch.spherical_harmonics
points = torch.randn(2, 4, 3, dtype=torch.float64)  # two sets of four points
one_by_one = torch.stack([harmonics(own, 2) for own in points])
at_once = torch.vmap(lambda own: harmonics(own, 2))(points)
print("one by one:", list(one_by_one.shape), "vmap:", list(at_once.shape))
