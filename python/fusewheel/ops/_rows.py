"""Helpers of operators over the last dimension."""

from __future__ import annotations

import torch
from torch import Tensor

from fusewheel._core.dtypes import accumulation_dtype


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype a kernel computes in, which is also that of a result with one value for a row."""
    return accumulation_dtype(x.dtype)


def wide(x: Tensor) -> Tensor:
    """`x` in the dtype that a kernel computes in."""
    return x.to(compute_dtype(x))


def empty_statistic(x: Tensor) -> Tensor:
    """An empty tensor with one value for every row of `x`."""
    return x.new_empty(x.shape[:-1], dtype=compute_dtype(x))


def with_features(x: Tensor, features: int) -> Tensor:
    """An empty tensor like `x` with another last dimension."""
    return torch.empty((*x.shape[:-1], features), dtype=x.dtype, device=x.device)
