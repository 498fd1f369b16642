"""Operators of torchvision."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torchvision
from tried import Tried

assert torchvision


def operators() -> Iterator[Tried]:
    """Those with a kernel for the CPU and tensors of ordinary dtypes."""
    torch.manual_seed(0)
    ops = torch.ops.torchvision
    # The first number of a row is the index of its image.
    rois = torch.tensor([[0, 0.3, 0.7, 6.2, 7.1], [0, 1.1, 2.2, 7.4, 6.3]])
    image, maps = torch.rand(1, 1, 5, 5), torch.rand(1, 4, 4, 4)
    corners = torch.rand(6, 2) * 4
    boxes = torch.cat([corners, corners + 1 + torch.rand(6, 2)], dim=1)
    yield Tried(ops.nms.default, [(boxes, torch.rand(6), 0.5)])
    rotated = torch.tensor([[2.0, 2.0, 3.0, 2.0, 20.0], [2.5, 2.0, 2.0, 2.5, -30.0]])
    yield Tried(ops.box_iou_rotated.default, [(rotated, rotated.flip(0) + 0.25)])
    yield Tried(ops.roi_align.default, [(image, rois, 0.5, 2, 2, 2, True)], ("rois",))
    yield Tried(ops.roi_pool.default, [(image, rois, 0.5, 2, 2)], ("rois",))
    yield Tried(ops.ps_roi_align.default, [(maps, rois, 0.5, 2, 2, 2)], ("rois",))
    yield Tried(ops.ps_roi_pool.default, [(maps, rois, 0.5, 2, 2)], ("rois",))
    places, mask = torch.rand(1, 8, 2, 2) / 2 + 0.1, torch.rand(1, 4, 2, 2)
    tensors = (torch.rand(1, 1, 3, 3), torch.rand(1, 1, 2, 2), places, mask, torch.rand(1))
    yield Tried(ops.deform_conv2d.default, [(*tensors, 1, 1, 0, 0, 1, 1, 1, 1, True)])
