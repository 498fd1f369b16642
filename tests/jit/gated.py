"""A small module that `fusewheel.jit` fuses, and whether it did."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from fusewheel.jit import transparent
from torch import Tensor, nn


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 3.0 if self.training else x


class Gated(nn.Module):
    """Small, with a weight and a number that folding constants would bake in."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.scale = 1.0
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x @ (self.weight.t() + 1.0))
        return F.silu(x) * y * self.scale

    @torch.jit.export
    def set_scale(self, scale: float):
        self.scale = scale


def gated() -> torch.jit.ScriptModule:
    return torch.jit.script(Gated().eval())


def plain(module: torch.jit.ScriptModule, x: Tensor) -> Tensor:
    """What it computes, written out."""
    y = x @ (module.weight.t() + 1.0)
    return F.silu(x) * (y * 3.0 if module.inner.training else y) * module.scale


def fused(module: torch.jit.ScriptModule) -> bool:
    """Whether a fused module runs in its place."""
    entry = transparent._entries.get(id(module))
    return entry is not None and entry.live is not None
