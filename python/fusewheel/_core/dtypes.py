"""Dtypes that follow from others."""

from __future__ import annotations

import torch


def accumulation_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """The dtype that sums over elements of `dtype` are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32
