"""Times of calls on a GPU, by its own clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[], Any]

WARM_UPS = 5
REPEATS = 50
FLUSHED = 256 << 20
"""Bytes that are written before each call: more than any GPU's cache holds."""


def gpu_seconds(call: Call) -> float:
    """The median time of a call that finds nothing of its arguments in the GPU's caches."""
    other = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")
    for _ in range(WARM_UPS):
        call()
    pairs = []
    for _ in range(REPEATS):
        other.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) / 1e3 for begin, end in pairs)


def copies(size: int, device: str) -> Call:
    """A call that reads and writes so many bytes together."""
    source = torch.zeros(max(size // 2, 1), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)
