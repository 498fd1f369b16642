"""roi_align has no gradient under torch.func

Its gradient is a C++ function of autograd, which `torch.func` cannot look into. The error comes
from PyTorch and says what is missing. `loss.backward()` works.
"""

import torch
from torchvision.ops import roi_align

boxes = torch.tensor([[0.0, 0.0, 0.0, 4.0, 4.0]])
try:
    torch.func.grad(lambda image: roi_align(image, boxes, 2).sum())(torch.rand(1, 1, 4, 4))
except RuntimeError as error:
    print(str(error).split(", it")[0])
