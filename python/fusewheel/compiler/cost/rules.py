"""Whether an operator is worth its place in a graph, by the number of its elements."""

from __future__ import annotations

from torch.fx import Node

from fusewheel._torch.overloads import OpOverload
from fusewheel.compiler.cost.traffic import tensors_in
from fusewheel.compiler.ir.metadata import requires_grad, tensor_of, value_of
from fusewheel.compiler.ir.pattern import Pattern

# What runs in the place of an operator, for each inner compiler that there are measurements with.
_RIVALS = {"none": "PyTorch's operators are", "inductor": "Inductor's code is"}


def loss(node: Node, inner: str | None, pattern: Pattern) -> str | None:
    """Why the operator of a pattern is slower at a node than what it replaces; None if it is not.

    Args:
        node: a node of a rewritten graph.
        inner: what runs the graph: ``"inductor"`` or ``"none"``. With anything else nothing was
            measured, and nothing is slower.
        pattern: the pattern; its `pays_above` decides.
    """
    if inner not in _RIVALS or not isinstance(node.target, OpOverload):
        return None
    elements = _elements(node) if node.target.name() == pattern.operator else None
    if elements is None:
        return None
    training = _is_differentiated(node)
    limit = pattern.pays_above.limit(inner, training)
    if not limit or elements > limit:
        return None
    direction = "forward and backward" if training else "forward"
    return f"{elements} elements, {direction}: {_RIVALS[inner]} faster up to {limit} elements"


def _elements(node: Node) -> int | None:
    """The elements of the largest argument; None if a size is not known before the graph runs, or
    on another device than a CPU.
    """
    tensors = [tensor for n in node.all_input_nodes if (tensor := tensor_of(n)) is not None]
    sizes = [tensor.numel() for tensor in tensors if tensor.device.type == "cpu"]
    if len(sizes) < len(tensors) or not all(isinstance(size, int) for size in sizes):
        return None
    return max(sizes, default=None)


def _is_differentiated(node: Node) -> bool:
    if "example_value" not in node.meta:
        return any(map(requires_grad, node.all_input_nodes))
    return any(tensor.requires_grad for tensor in tensors_in(value_of(node)))
