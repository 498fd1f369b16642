"""Estimates the memory traffic of a part of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import view
from fusewheel.compiler.ir.metadata import Size, storage_of, tensor_of, value_of

# PyTorch computes these in two kernels, with a tensor as large as the first argument between them.
_TWICE = frozenset({"cross_entropy"})


def traffic(nodes: Iterable[Node]) -> int | None:
    """The bytes that are read and written if every node runs as a kernel of its own.

    A kernel reads each of its tensors once and writes each of its results once; views are free.
    Caches and memory that a kernel uses inside are left out. Symbolic sizes count as the sizes that
    the graph was captured with.

    Returns:
        the bytes; None if a size is not known.
    """
    total = 0
    for node in nodes:
        for tensor in _moved(node):
            moved = bytes_of(tensor)
            if moved is None:
                return None
            total += moved
    return total


def _moved(node: Node) -> list[torch.Tensor]:
    results = list(tensors_in(value_of(node)))
    inputs = [tensor for source in node.all_input_nodes for tensor in tensors_in(value_of(source))]
    found = view(node)
    if found is None or not found.inplace:
        memory = {storage_of(tensor) for tensor in inputs} - {None}
        if results and all(storage_of(tensor) in memory for tensor in results):
            return []
    operands = [t for source in node.all_input_nodes if (t := tensor_of(source)) is not None]
    between = tensor_of(found.args[0]) if found is not None and found.op in _TWICE else None
    return [*operands, *results, *([] if between is None else [between, between])]


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors of a result, which may be one tensor or several."""
    items = value if isinstance(value, (tuple, list)) else (value,)
    return (item for item in items if isinstance(item, torch.Tensor))


def bytes_of(tensor: torch.Tensor) -> int | None:
    """The bytes of a tensor in memory, expanded dimensions counted once; None if not known."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if isinstance(stride, int) and stride == 0:  # expanded: one element is read again and again
            continue
        length = known(size)
        if length is None:
            return None
        count *= length
    return count * tensor.element_size()


def known(size: Size) -> int | None:
    """A size; if it is symbolic, the one that the graph was captured with, or None."""
    hint = size if isinstance(size, int) else getattr(size.node, "hint", None)
    return hint if isinstance(hint, int) else None
