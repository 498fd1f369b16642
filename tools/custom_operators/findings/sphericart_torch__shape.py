"""spherical_harmonics does not check that points have three coordinates

It reads three numbers for each row of a tensor that has one, so two thirds of them are other
memory.
"""

import sphericart.torch
import torch

points = torch.zeros(2, 1, dtype=torch.float64)  # should be [2, 3]
print("accepted, and gives", list(sphericart.torch.SphericalHarmonics(2)(points).shape))
