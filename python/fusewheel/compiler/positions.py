"""Tensors whose values are positions along one dimension, as masks compare them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from .canonical import rank_of, view
from .metadata import dtype_of, tensor_of, value_of


@dataclass(frozen=True)
class Position:
    """Values that count up by one along a dimension (from the last), from `start` on."""

    dim: int
    start: int | None


def position(node: Any) -> Position | None:
    """Where the values of a node count up; None if they do not."""
    found = view(node)
    rank = rank_of(node)
    if rank is None:
        return None
    if found is None:
        return _indexed(node)
    if found.op == "arange":
        start = found.attrs["start"]
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
        dtype = dtype_of(node)
        exact = dtype is not None and not dtype.is_floating_point and dtype != torch.bool
        return position(found.args[0]) if exact else None
    if found.op == "unsqueeze":
        inner = position(found.args[0])
        if inner is None:
            return None
        at = inner.dim + rank - 1  # counted from the first, before
        return replace(inner, dim=at + (at >= found.attrs["dim"]) - rank)
    if found.op in ("expand", "contiguous"):
        return position(found.args[0])
    return None


def _is_one_number(value: Any) -> bool:
    if isinstance(value, Node):
        tensor = tensor_of(value)
        return tensor.dim() == 0 if tensor is not None else not isinstance(value_of(value), tuple)
    return isinstance(value, int)


def _indexed(node: Node) -> Position | None:
    """``x[None, :, None]``."""
    if getattr(node.target, "__name__", "") != "getitem" or len(node.args) != 2:
        return None
    items = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    inner = position(node.args[0])
    if inner is None or not all(item is None or item == slice(None) for item in items):
        return None
    kept = [place for place, item in enumerate(items) if item is not None]
    at = inner.dim + (rank_of(node.args[0]) or 0)
    if at >= len(kept):
        return None
    return replace(inner, dim=kept[at] - len(items))
