"""Operators of torchao."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torchao.quantization
from tried import Tried

assert torchao


def operators() -> Iterator[Tried]:
    """Those that round to integers."""
    torch.manual_seed(0)
    ops = torch.ops.torchao
    x, block = torch.randn(4, 8), [1, 8]
    scale, zero = x.abs().amax(1) / 127, torch.zeros(4, dtype=torch.int32)
    yield Tried(ops.choose_qparams_affine.default, [(x, "SYMMETRIC", block, torch.int8)])
    yield Tried(ops.quantize_affine.default, [(x, block, scale, zero, torch.int8)], ("scale",))
