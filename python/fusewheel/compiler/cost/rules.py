"""Whether an operator pays, by what the benchmarks have measured of it.

Figures of one machine tell little of another: what they say is taken for true only where the
operator loses clearly, with every number of threads that was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from . import measured
from .metadata import requires_grad, tensor_of, value_of
from .traffic import tensors_in

# By so much it may be slower: what repeated measurements differ by.
CLEARLY = 0.95

# The column of `measured.RATIOS` by what runs the rewritten graph: nothing but the operators, or
# Inductor; and what the operator is compared with there.
_RIVALS = {"none": (1, "PyTorch's own"), "inductor": (2, "Inductor's code")}


def loss(node: Node, inner: str | None) -> str | None:
    """Why an operator does not pay, None where it does or nothing is known.

    Args:
        node: its call in a rewritten graph, or any other node.
        inner: what runs the graph: ``"inductor"``, ``"none"``, or anything else, of which nothing
            is known.
    """
    if inner not in _RIVALS or not isinstance(node.target, torch._ops.OpOverload):
        return None
    tensors = [tensor for n in node.all_input_nodes if (tensor := tensor_of(n)) is not None]
    if not tensors or not all(tensor.device.type == "cpu" for tensor in tensors):
        return None
    largest = max(tensors, key=_elements)
    elements, dtype = _elements(largest), str(largest.dtype).removeprefix("torch.")
    backward = _is_differentiated(node)
    points = measured.RATIOS.get((_variant(node, node.target), dtype, backward), ())
    column, rival = _RIVALS[inner]
    ratio = _nearest(points, elements, column)
    if ratio is None or ratio >= CLEARLY:
        return None
    direction = "forward and backward" if backward else "forward"
    return f"{elements} elements in {dtype}, {direction}: measured at {ratio:g} times {rival}"


def _variant(node: Node, operator: torch._ops.OpOverload) -> str:
    """An operator's name and its flags that are set: ``gelu tanh``."""
    pairs = zip(operator._schema.arguments, node.args, strict=False)
    flags = [argument.name for argument, value in pairs if value is True]
    return " ".join([operator.name().partition("::")[2], *flags])


def _is_differentiated(node: Node) -> bool:
    if "example_value" not in node.meta:
        return any(map(requires_grad, node.all_input_nodes))
    return any(tensor.requires_grad for tensor in tensors_in(value_of(node)))


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
