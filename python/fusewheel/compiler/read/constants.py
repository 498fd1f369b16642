"""Finds tensors whose elements are all the same known number."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import View, rank_of, view
from fusewheel.compiler.ir.metadata import dtype_of, same_sizes, shape_of
from fusewheel.compiler.read.positions import COUNTED, position

_COMPARED = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def constant(argument: Any) -> float | None:
    """The number that all elements of an argument are; None if it is not known."""
    if isinstance(argument, (bool, int, float)):
        return float(argument)
    found = view(argument)
    if found is not None:
        value = _value(found)
        return None if value is None else in_dtype(value, found.node)
    if isinstance(argument, Node) and argument.target is operator.getitem:
        return constant(argument.args[0])  # it does not matter which elements are taken
    return None


def in_dtype(value: float, node: Node) -> float:
    """A number, rounded to the dtype of the node's tensor."""
    number = torch.tensor(value, dtype=torch.float64, device="cpu")
    return float(number.to(dtype_of(node)))


def _value(found: View) -> float | None:
    if found.op == "full":
        value = found.attrs["value"]
        return float(value) if isinstance(value, (bool, int, float)) else None
    if found.op in ("expand", "unsqueeze", "cast", "contiguous"):
        return constant(found.args[0])
    if found.op == "slice":
        return _sliced(found)
    if found.op == "cumsum":
        return 0.0 if constant(found.args[0]) == 0 else None
    if found.op == "diff":
        return _difference(found)
    if found.op == "sub" or found.op in _COMPARED:
        first, second = map(_integer, found.args)
        if first is None or second is None:
            return None
        return float(_COMPARED.get(found.op, operator.sub)(first, second))
    return None


def _integer(argument: Any) -> float | None:
    """A constant that can be compared and subtracted without rounding."""
    exact = isinstance(argument, int) or dtype_of(argument) in (*COUNTED, torch.bool)
    return constant(argument) if exact else None


def _sliced(found: View) -> float | None:
    source, start = position(found.args[0]), found.attrs["start"]
    if source is None or source.start is None or found.attrs["stop"] - start != 1:
        return constant(found.args[0])
    along = found.attrs["dim"] == source.dim + (rank_of(found.node) or 0)
    return float(source.start + start) if along else None


def _difference(found: View) -> float | None:
    """1 for the difference of neighbouring positions."""
    positions, before = found.args
    source = position(positions)
    if source is None or source.start is None or source.dim != found.attrs["dim"]:
        return None
    one = same_sizes((shape_of(before) or ())[source.dim :][:1], (1,))
    return 1.0 if one and _integer(before) == source.start - 1 else None
