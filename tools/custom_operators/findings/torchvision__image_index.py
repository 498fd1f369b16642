"""roi_align reads other memory if a box names an image that is not there

The first number of a box is the index of its image. It is not compared with the number of images,
so the kernel reads behind the input. Here the memory behind it holds three other images; elsewhere
it is anything, and a large index ends the process. This has been reported (pytorch/vision#4828).
"""

import torch
from torchvision.ops import roi_align

images = torch.arange(4.0)[:, None, None, None].expand(4, 1, 4, 4).contiguous()
boxes = torch.tensor([[3.0, 0.0, 0.0, 4.0, 4.0]])  # of the fourth image
print("given one image of zeros:", roi_align(images[:1], boxes, output_size=1).flatten().tolist())
