"""Inputs of attention."""

from __future__ import annotations

import torch
from fusewheel.dispatch.operator import Make
from torch import Tensor

INFINITY = float("inf")
NAN = float("nan")


def inputs(
    queries: int,
    keys: int,
    *,
    batch: int = 1,
    heads: int = 3,
    kv_heads: int = 1,
    size: int = 16,
    value_size: int | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 71,
) -> tuple[Tensor, Tensor, Tensor]:
    make = Make(dtype, seed=seed)
    value_size = size if value_size is None else value_size
    return (
        make(batch, heads, queries, size),
        make(batch, kv_heads, keys, size),
        make(batch, kv_heads, keys, value_size),
    )


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]
