"""Finds tensors whose values are positions along one dimension, which masks compare."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import rank_of, view
from fusewheel.compiler.ir.metadata import dtype_of, same_sizes, shape_of, tensor_of, value_of

# The dtypes in which no position is rounded or wraps around.
COUNTED = (torch.int64, torch.int32)


@dataclass(frozen=True)
class Position:
    """Values that count up by one along dimension `dim` (counted from the last), from `start`."""

    dim: int
    start: int | None


def position(node: Any) -> Position | None:
    """The positions in a node's values; None if they do not count up."""
    found = view(node)
    rank = rank_of(node)
    if rank is None:
        return None
    if found is None:
        return _indexed(node)
    if found.op == "arange":
        start = found.attrs["start"] if dtype_of(node) in COUNTED else None
        return Position(-1, start if isinstance(start, int) else None)
    if found.op in ("add", "sub"):
        a, b = found.args
        if found.op == "add" and position(a) is None:
            a, b = b, a
        inner = position(a)
        if inner is None or position(b) is not None or not _is_one_number(b):
            return None
        if inner.start is None or not isinstance(b, int):
            return replace(inner, start=None)
        return replace(inner, start=inner.start + (b if found.op == "add" else -b))
    if found.op == "cast":
        return position(found.args[0]) if dtype_of(node) in COUNTED else None
    if found.op == "unsqueeze":
        inner = position(found.args[0])
        if inner is None:
            return None
        at = inner.dim + rank - 1  # counted from the first dimension, before the unsqueeze
        return replace(inner, dim=at + (at >= found.attrs["dim"]) - rank)
    if found.op in ("expand", "contiguous"):
        return _along(position(found.args[0]), found.args[0], node)
    return None


def _along(place: Position | None, source: Any, result: Node) -> Position | None:
    """The same positions, if the result has as many of them and so was not broadcast."""
    if place is None:
        return None
    sizes = [(shape_of(n) or ())[place.dim :][:1] for n in (source, result)]
    return place if same_sizes(*sizes) else None


def _is_one_number(value: Any) -> bool:
    if isinstance(value, Node):
        tensor = tensor_of(value)
        return tensor.dim() == 0 if tensor is not None else not isinstance(value_of(value), tuple)
    return isinstance(value, int)


def _indexed(node: Node) -> Position | None:
    """``x[None, :, None]``, or ``x[rows, places]``."""
    if node.target is not operator.getitem:
        return None
    base, index = node.args
    items = index if isinstance(index, tuple) else (index,)
    inner, rank = position(base), rank_of(base) or 0
    if inner is None:
        return None
    if len(items) == rank and all(dtype_of(item) in COUNTED for item in items):
        return _looked_up(node, inner, items[inner.dim])
    kept = [place for place, item in enumerate(items) if item is not None]
    if len(kept) != rank or any(items[place] != slice(None) for place in kept):
        return None
    return replace(inner, dim=kept[inner.dim] - len(items))


def _looked_up(node: Node, inner: Position, index: Any) -> Position | None:
    """The positions in a table that is indexed by positions, with the same index in every row."""
    place = position(index)
    if place is None or place.start is None or place.start < 0 or inner.start is None:
        return None
    return _along(replace(place, start=inner.start + place.start), index, node)
