"""What is known about the value of an FX node: dtype, shape, device, storage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

import torch
from torch.fx import Graph, GraphModule, Node

from fusewheel._torch.fx import storage_key

Size = int | torch.SymInt

_inference: ContextVar[bool] = ContextVar("inference", default=False)


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """In this block, graphs whose metadata says nothing about gradients count as having none."""
    token = _inference.set(True)
    try:
        yield
    finally:
        _inference.reset(token)


CONSTANT = "fusewheel_constant"
"""In the `meta` of a node that no call computes: its value."""

BOUND = "fusewheel_bound"
"""In the `meta` of a program that holds weights: its code without them, and their nodes."""

FAILED = "fusewheel_failed"
"""In the `meta` of a graph's module: that an error left a part of the graph as it was."""


def value_of(node: Node) -> object:
    """The example value Dynamo (``example_value``) or ATen tracing (``val``) left on a node."""
    value = node.meta.get("example_value")
    return node.meta.get("val") if value is None else value


def tensor_of(node: object) -> torch.Tensor | None:
    """The example tensor of a node; None for constants and for nodes of another type."""
    value = value_of(node) if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def dtype_of(node: object) -> torch.dtype | None:
    """The dtype of a node's tensor, None if it is not known to be a tensor."""
    tensor = tensor_of(node)
    return None if tensor is None else tensor.dtype


def shape_of(node: object) -> tuple[Size, ...] | None:
    """The shape of a node's tensor (sizes may be symbolic), None if it is not a tensor."""
    tensor = tensor_of(node)
    return None if tensor is None else tuple(tensor.shape)


def requires_grad(node: Node) -> bool:
    """Whether gradients flow to a node's tensor.

    Dynamo's example values say so. The values of ATen tracing do not: there, everything computed
    from something trainable counts, unless the graph is for `inference`.
    """
    if "example_value" in node.meta:
        tensor = tensor_of(node)
        return tensor is not None and tensor.requires_grad
    if _inference.get():
        return False
    seen: set[Node] = set()
    todo = [node]
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        tensor = tensor_of(current)
        if tensor is not None and tensor.requires_grad:
            return True
        todo += current.all_input_nodes
    return False


def same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are equal for every input; never adds a guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    written = [getattr(getattr(size, "node", None), "expr", None) for size in (a, b)]
    if written[0] is not None and written[0] == written[1]:
        return True  # without the arithmetic of symbols
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(a == b)


def same_sizes(a: Iterable[Size] | None, b: Iterable[Size] | None) -> bool:
    """Whether two shapes (or strides) are equal for every input; never adds a guard."""
    if a is None or b is None:
        return False
    left, right = tuple(a), tuple(b)
    return len(left) == len(right) and all(map(same_size, left, right))


def storage_of(tensor: torch.Tensor) -> int | None:
    """A key shared by all example tensors that view the same memory; None if there is none."""
    try:
        return storage_key(tensor)
    except (NotImplementedError, RuntimeError):  # a subclass without storage
        return None


def note_failure(graph: Graph) -> None:
    """Note in the `meta` of a graph's module that an error left a part of the graph as it was."""
    if graph.owning_module is not None:
        graph.owning_module.meta[FAILED] = True


def bodies_of(node: Node) -> list[GraphModule]:
    """The submodules that a call of a higher-order operator takes as arguments."""
    found = []
    for argument in node.all_input_nodes:
        if argument.op == "get_attr":
            body = getattr(argument.graph.owning_module, str(argument.target), None)
            if isinstance(body, GraphModule):
                found.append(body)
    return found


def promoted(nodes: Iterable[object]) -> torch.dtype | None:
    """The dtype that arithmetic over these operands has; Python numbers do not count."""
    tensors = [tensor for node in nodes if (tensor := tensor_of(node)) is not None]
    # A zero-dimensional tensor does not decide if there are floating tensors with dimensions.
    shaped = [tensor for tensor in tensors if tensor.dim() > 0]
    if any(tensor.is_floating_point() for tensor in shaped):
        tensors = shaped
    result: torch.dtype | None = None
    for tensor in tensors:
        result = tensor.dtype if result is None else torch.promote_types(result, tensor.dtype)
    return result
