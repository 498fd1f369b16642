"""What operators over the last dimension share."""

from __future__ import annotations

import torch
from torch import Tensor


def compute_dtype(x: Tensor) -> torch.dtype:
    """What a kernel computes in, and the dtype of what it returns for a whole row."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def wide(x: Tensor) -> Tensor:
    """`x` as a kernel computes with it."""
    return x.to(compute_dtype(x))


def check_rows(op: str, x: Tensor, *columns: tuple[str, Tensor | None]) -> None:
    """Refuses an x without dimensions, and per-column arguments of another size than its last."""
    torch._check(x.dim() > 0, lambda: f"{op}: x must have at least one dimension")
    for name, column in columns:
        if column is not None:
            shape = column.shape
            torch._check(
                shape == x.shape[-1:],
                lambda name=name, shape=shape: (
                    f"{op}: {name} must have shape {list(x.shape[-1:])}, got {list(shape)}"
                ),
            )


def check_same(op: str, name: str, other: Tensor, x: Tensor) -> None:
    """Refuses an argument whose shape is not x's."""
    torch._check(
        other.shape == x.shape,
        lambda: f"{op}: {name} must have shape {list(x.shape)}, got {list(other.shape)}",
    )


def check_matrix(op: str, name: str, weight: Tensor) -> None:
    """Refuses the weight of a linear layer that is no matrix."""
    torch._check(
        weight.dim() == 2,
        lambda: (
            f"{op}: {name} must be a matrix [out features, in features], "
            f"got shape {list(weight.shape)}"
        ),
    )


def empty_statistic(x: Tensor) -> Tensor:
    """One value for every row."""
    return x.new_empty(x.shape[:-1], dtype=compute_dtype(x))
