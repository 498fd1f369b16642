"""Whether an operator is worth its place in a graph, by the measurements of the benchmark.

Measurements of one machine say little about another. So they decide only if the operator was
clearly slower, with every number of threads that was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from fusewheel._torch.overloads import OpOverload
from fusewheel.compiler.cost import measured
from fusewheel.compiler.cost.traffic import tensors_in
from fusewheel.compiler.ir.metadata import requires_grad, tensor_of, value_of

# Below this ratio of speeds an operator counts as slower; repeated measurements differ by as much.
CLEARLY = 0.95

# For each inner compiler: the column of `measured.RATIOS`, and what the operator is compared with.
_RIVALS = {"none": (1, "PyTorch's own"), "inductor": (2, "Inductor's code")}


def loss(node: Node, inner: str | None) -> str | None:
    """Why an operator would be slower than what it replaces; None if it would not, or if there is
    no measurement.

    Args:
        node: the call of the operator in a rewritten graph, or any other node.
        inner: what runs the graph: ``"inductor"`` or ``"none"``; for anything else there is no
            measurement.
    """
    if inner not in _RIVALS or not isinstance(node.target, OpOverload):
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


def _variant(node: Node, operator: OpOverload) -> str:
    """The name of an operator, followed by the flags that are True: ``gelu tanh``."""
    pairs = zip(operator._schema.arguments, node.args, strict=False)
    flags = [argument.name for argument, value in pairs if value is True]
    return " ".join([operator.name().partition("::")[2], *flags])


def _is_differentiated(node: Node) -> bool:
    if "example_value" not in node.meta:
        return any(map(requires_grad, node.all_input_nodes))
    return any(tensor.requires_grad for tensor in tensors_in(value_of(node)))


def _elements(tensor: torch.Tensor) -> int:
    """The number of elements; 0 if it is not known before the graph runs."""
    count = tensor.numel()
    return count if isinstance(count, int) else 0


def _nearest(points: Sequence[tuple[float, ...]], elements: int, column: int) -> float | None:
    """The measured ratio for this number of elements: the better one of its two neighbours."""
    larger = [point for point in points if point[0] >= elements]
    if not larger or not elements:
        return None  # more elements than were measured
    smaller = [point for point in points if point[0] <= elements]
    return max(point[column] for point in (*smaller[-1:], larger[0]))
