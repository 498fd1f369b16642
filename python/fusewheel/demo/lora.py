"""Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685) over frozen layers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fusewheel.quantization import LinearInt4, LinearInt8

Linear = nn.Linear | LinearInt4 | LinearInt8

RANK = 8
_SCALE = 2.0


class Adapted(nn.Module):
    """A frozen linear layer plus a trained ``scale * up @ down`` of rank `RANK`."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.linear = linear
        size = linear.in_features
        self.down = nn.Parameter(torch.randn(RANK, size) / math.sqrt(size))
        # Zeros, so that the first step starts from the unchanged model.
        self.up = nn.Parameter(torch.zeros(linear.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both, x [..., in features] to [..., out features]."""
        return self.linear(x) + (x @ self.down.T) @ (_SCALE * self.up).T


def add_adapters(layers: nn.Module) -> list[nn.Parameter]:
    """Adapt every linear layer in `layers`, freeze the rest; returns the trained parameters."""
    layers.requires_grad_(False)
    torch.manual_seed(0)
    for parent, name, linear in list(_linear_layers(layers)):
        setattr(parent, name, Adapted(linear))
    return [parameter for parameter in layers.parameters() if parameter.requires_grad]


def _linear_layers(layers: nn.Module) -> Iterator[tuple[nn.Module, str, Linear]]:
    for parent in layers.modules():
        for name, child in parent.named_children():
            if isinstance(child, Linear):
                yield parent, name, child
