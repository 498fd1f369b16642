"""Arguments that several operators take."""

from __future__ import annotations

from fusewheel.ops._rows import wide
from torch import Tensor

from fuzz.draw import Draw


def pair(d: Draw) -> tuple[Tensor, ...]:
    """Two operands that broadcast."""
    return tuple(d.tensor(*shape) for shape in d.broadcast(2))


def grad_and_pair(d: Draw) -> tuple[Tensor, ...]:
    """And the gradient of their result."""
    return tuple(d.tensor(*shape) for shape in d.broadcast(3))


def packed(d: Draw) -> Tensor:
    """Two halves."""
    return d.tensor(*d.shape(0, 2), 2 * d.size())


def grad_and_packed(d: Draw) -> tuple[Tensor, Tensor]:
    """And the gradient of what one of them gives."""
    shape = (*d.shape(0, 2), d.size())
    return d.tensor(*shape), d.tensor(*shape[:-1], 2 * shape[-1])


def any_rows(d: Draw) -> tuple[int, ...]:
    """At least one dimension, the last the longest as a rule."""
    return (*d.shape(0, 2, 64), d.size())


def row_values(d: Draw, *shape: int) -> Tensor:
    """One value for a row, in the dtype of what a kernel computes for it."""
    return d.lay(wide(d.tensor(*shape)))


def epsilon(d: Draw) -> float:
    """Of a norm."""
    return d.choice(1e-6, 1e-5, 1e-2, 0.5)
