"""Operators of bitsandbytes."""

from __future__ import annotations

from collections.abc import Iterator

import bitsandbytes
import torch
from bitsandbytes.functional import create_dynamic_map
from tried import Tried

assert bitsandbytes


def operators() -> Iterator[Tried]:
    """Some that inference and the optimisers call."""
    torch.manual_seed(0)
    ops = torch.ops.bitsandbytes
    weight = torch.randn(2, 64)
    yield Tried(ops.quantize_4bit.default, [(weight, 64, "nf4", torch.uint8)])
    code = create_dynamic_map()
    yield Tried(ops.quantize_blockwise.default, [(weight, code, 64)], ("code",))
    a, b = (torch.randint(-127, 128, (n, 8), dtype=torch.int8) for n in (3, 4))
    yield Tried(ops.int8_linear_matmul.default, [(a, b)])
