"""Estimate the memory that a part of a graph moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.fx import Node

from .canonical import view
from .metadata import Size, storage_of, tensor_of, value_of

# What PyTorch computes in two kernels, with a tensor as large as the first argument between them.
_TWICE = frozenset({"cross_entropy"})


def traffic(nodes: Iterable[Node]) -> int | None:
    """Bytes that are read and written when every node is a kernel of its own.

    A kernel reads each of its tensors once and writes each of its results once; views are free. No
    cache is reckoned with, nor what a kernel does to memory inside. Symbolic sizes count as those
    the graph was captured with.

    Returns:
        the bytes, None if a size is not known.
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
    """The tensors of a result that is one or several."""
    items = value if isinstance(value, (tuple, list)) else (value,)
    return (item for item in items if isinstance(item, torch.Tensor))


def bytes_of(tensor: torch.Tensor) -> int | None:
    """Bytes of a tensor's elements, an expanded one counted once; None if a size is not known."""
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
    """A size, the one the graph was captured with if it is symbolic; None if there is none."""
    hint = size if isinstance(size, int) else getattr(size.node, "hint", None)
    return hint if isinstance(hint, int) else None
