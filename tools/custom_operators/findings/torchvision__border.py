"""ps_roi_pool: forward and backward do not agree on boxes at the border

If a box reaches the last row or column of the image, the forward on a CPU leaves these pixels out,
and the backward does not.
"""

import torch
from torchvision.ops import ps_roi_pool

boxes = torch.tensor([[0.0, 0.0, 0.0, 4.0, 4.0]])
image = torch.zeros(1, 1, 4, 4, requires_grad=True)
ps_roi_pool(image, boxes, 1).sum().backward()
corner = torch.zeros(1, 1, 4, 4)
corner[0, 0, 3, 3] = 1.0
print("gradient of the last pixel:", image.grad[0, 0, 3, 3].item())
print("what the last pixel adds:", ps_roi_pool(corner, boxes, 1).item())
