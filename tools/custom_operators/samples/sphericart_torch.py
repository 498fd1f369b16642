"""Operators of sphericart."""

from __future__ import annotations

from collections.abc import Iterator

import sphericart.torch
import torch
from tried import Tried

assert sphericart.torch


def operators() -> Iterator[Tried]:
    """All that compute."""
    torch.manual_seed(0)
    ops = torch.ops.sphericart_torch
    points = torch.randn(4, 3, dtype=torch.float64)
    for kind in ("spherical", "solid"):
        for more in ("", "_with_gradients", "_with_hessians"):
            yield Tried(getattr(ops, f"{kind}_harmonics{more}").default, [(points, 2)])
