"""Whether an operator pays, by what the benchmarks have measured of it.

Figures of one machine tell little of another: what they say is taken for true only where the
operator loses clearly, with every number of threads and in every variant that was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import measured
from .metadata import requires_grad, tensor_of
from .pattern import Match, Pattern

# By so much it may be slower: what repeated measurements differ by.
CLEARLY = 0.95

# The column of `measured.RATIOS` by what runs the rewritten graph: nothing but the operators, or
# Inductor; and what the operator is compared with there.
_RIVALS = {"none": (1, "PyTorch's own"), "inductor": (2, "Inductor's code")}


def loss(pattern: Pattern, match: Match, inner: str | None) -> str | None:
    """Why a match that is right does not pay, None where it does or nothing is known.

    Args:
        pattern: what was matched.
        match: the match.
        inner: what runs the rewritten graph: ``"inductor"``, ``"none"``, or anything else, of
            which nothing is known.
    """
    if inner not in _RIVALS:
        return None
    tensors = [tensor for node in match.inputs if (tensor := tensor_of(node)) is not None]
    if not tensors or not all(tensor.device.type == "cpu" for tensor in tensors):
        return None
    largest = max(tensors, key=_elements)
    elements, dtype = _elements(largest), str(largest.dtype).removeprefix("torch.")
    backward = any(map(requires_grad, match.roots))
    name = pattern.operator.partition("::")[2]
    points = measured.RATIOS.get((name, dtype, backward), ())
    column, rival = _RIVALS[inner]
    ratio = _nearest(points, elements, column)
    if ratio is None or ratio >= CLEARLY:
        return None
    direction = "forward and backward" if backward else "forward"
    return f"{elements} elements in {dtype}, {direction}: measured at {ratio:g} times {rival}"


def _elements(tensor: torch.Tensor) -> int:
    """How many there are; 0 where that is not known before the graph runs."""
    count = tensor.numel()
    return count if isinstance(count, int) else 0


def _nearest(points: Sequence[tuple[float, ...]], elements: int, column: int) -> float | None:
    """What was measured of so many elements: the better of the neighbours."""
    larger = [point for point in points if point[0] >= elements]
    if not larger or not elements:
        return None  # of more elements than were measured nothing is known
    smaller = [point for point in points if point[0] <= elements]
    return max(point[column] for point in (*smaller[-1:], larger[0]))
