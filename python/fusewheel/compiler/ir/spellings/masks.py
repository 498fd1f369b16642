"""Spellings of the operations in masks and attention; importing it fills the table."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from fusewheel.compiler.ir.canonical import View, rank_of, spell
from fusewheel.compiler.ir.metadata import dtype_of
from fusewheel.compiler.ir.spellings.functions import _cast

_aten = torch.ops.aten


def _softmax(node: Node, bound: dict[str, Any]) -> View | None:
    rank, dim = rank_of(bound["input"]), bound["dim"]
    if rank is None or not isinstance(dim, int):
        return None
    return View(node, "softmax", (bound["input"],), {"dim": dim % max(rank, 1)})


def _dropout(node: Node, bound: dict[str, Any]) -> View | None:
    """Dropout that does nothing; dropout that draws random numbers has no view."""
    active = bound["training"] and bound["p"] != 0
    known = isinstance(bound["p"], (int, float)) and isinstance(bound["training"], bool)
    return View(node, "dropout", (bound["input"],)) if known and not active else None


def _einsum(node: Node, bound: dict[str, Any]) -> View | None:
    operands = (bound["a"], bound["b"])
    if isinstance(bound["a"], (list, tuple)):
        operands = tuple(bound["a"])
    if len(operands) != 2 or not all(isinstance(value, Node) for value in operands):
        return None
    equation = bound["equation"]
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        return None
    terms, _, result = equation.replace(" ", "").partition("->")
    labels = (*terms.split(","), result)
    if len(labels) != 3 or any(len(set(term)) != len(term) for term in labels):
        return None
    return View(node, "einsum", operands, {"labels": labels})


def _arange(node: Node, bound: dict[str, Any]) -> View | None:
    start, stop = bound["start"], bound["end"]
    if stop is None:
        start, stop = 0, start
    return View(node, "arange", (), {"start": start}) if bound["step"] == 1 else None


def _arange_from_0(node: Node, bound: dict[str, Any]) -> View:
    return View(node, "arange", (), {"start": 0})


def _diff(node: Node, bound: dict[str, Any]) -> View | None:
    rank, dim = rank_of(bound["input"]), bound["dim"]
    if rank is None or not isinstance(dim, int) or bound["n"] != 1 or bound["append"] is not None:
        return None
    from_last = dim if dim < 0 else dim - rank
    return View(node, "diff", (bound["input"], bound["prepend"]), {"dim": from_last})


def _cumsum(node: Node, bound: dict[str, Any]) -> View:
    return View(node, "cumsum", (bound["input"],))


def _filled(value: float) -> Any:
    def build(node: Node, bound: dict[str, Any]) -> View:
        return View(node, "full", (), {"value": value})

    return build


def _full(node: Node, bound: dict[str, Any]) -> View:
    return View(node, "full", (), {"value": bound["fill_value"]})


def _triangle(node: Node, bound: dict[str, Any]) -> View | None:
    name = "tril" if "tril" in str(getattr(node.target, "__name__", node.target)) else "triu"
    if not isinstance(bound["diagonal"], int):
        return None
    return View(node, name, (bound["input"],), {"diagonal": bound["diagonal"]})


def _where(node: Node, bound: dict[str, Any]) -> View | None:
    if dtype_of(bound["condition"]) != torch.bool:
        return None
    return View(node, "where", (bound["condition"], bound["input"], bound["other"]))


_OPTIONS = ("dtype", "layout", "device", "pin_memory", "requires_grad")
_NONE = dict.fromkeys(_OPTIONS)
_SIZES = dict.fromkeys("bcd")

# fmt: off
spell("softmax", "input dim _stacklevel dtype", functions=(F.softmax,),
      defaults={"_stacklevel": 3, "dtype": None}, build=_softmax)
spell("softmax", "input dim dtype", functions=(torch.softmax, torch.special.softmax,
      _aten.softmax.int), methods="softmax", defaults={"dtype": None}, build=_softmax)
spell("dropout", "input p training inplace", functions=(F.dropout,), defaults={"p": 0.5,
      "training": True, "inplace": False}, build=_dropout)
spell("dropout", "input p training", functions=(torch.dropout,), build=_dropout)
spell("dropout", "input p training", functions=(_aten.dropout.default,), build=_dropout)
spell("einsum", "equation a b", functions=(torch.einsum, torch.functional.einsum,
      _aten.einsum.default), defaults={"b": None}, build=_einsum)
spell("bmm", "input mat2", functions=(torch.bmm, _aten.bmm.default), methods="bmm")
spell("masked_fill", "input mask value", functions=(torch.masked_fill,
      _aten.masked_fill.Scalar), methods="masked_fill")
spell("where", "condition input other", functions=(torch.where, _aten.where.self,
      _aten.where.ScalarOther, _aten.where.ScalarSelf, _aten.where.Scalar), build=_where)
spell("arange", " ".join(("start", "end", "step", *_OPTIONS)), functions=(torch.arange,
      _aten.arange.start, _aten.arange.start_step), build=_arange,
      defaults={"end": None, "step": 1, **_NONE})
spell("arange", " ".join(("end", *_OPTIONS)), functions=(_aten.arange.default,),
      defaults=_NONE, build=_arange_from_0)
spell("cumsum", "input dim dtype", functions=(torch.cumsum, _aten.cumsum.default),
      methods="cumsum", defaults={"dtype": None}, build=_cumsum)
spell("diff", "input n dim prepend append", functions=(torch.diff, _aten.diff.default),
      methods="diff", defaults={"n": 1, "dim": -1, "prepend": None, "append": None}, build=_diff)
spell("full", " ".join(("input", "size", *_OPTIONS)), methods="new_ones", defaults=_NONE,
      build=_filled(1))
spell("full", " ".join(("input", "size", *_OPTIONS)), methods="new_zeros", defaults=_NONE,
      build=_filled(0))
spell("full", " ".join(("size", "b", "c", "d", *_OPTIONS)), functions=(torch.ones,
      _aten.ones.default), defaults=_SIZES | _NONE, build=_filled(1))
spell("full", " ".join(("size", "b", "c", "d", *_OPTIONS)), functions=(torch.zeros,
      _aten.zeros.default), defaults=_SIZES | _NONE, build=_filled(0))
spell("full", " ".join(("size", "fill_value", *_OPTIONS)), functions=(torch.full,
      _aten.full.default), defaults=_NONE, build=_full)
spell("tril", "input diagonal", functions=(torch.tril, _aten.tril.default), methods="tril",
      defaults={"diagonal": 0}, build=_triangle)
spell("triu", "input diagonal", functions=(torch.triu, _aten.triu.default), methods="triu",
      defaults={"diagonal": 0}, build=_triangle)
spell("and", "input other", functions=(operator.and_, torch.logical_and, torch.bitwise_and,
      _aten.bitwise_and.Tensor, _aten.logical_and.default),
      methods="logical_and bitwise_and __and__ __rand__")
spell("or", "input other", functions=(operator.or_, torch.logical_or, torch.bitwise_or,
      _aten.bitwise_or.Tensor, _aten.logical_or.default),
      methods="logical_or bitwise_or __or__ __ror__")
spell("not", "input", functions=(operator.invert, torch.logical_not, torch.bitwise_not,
      _aten.bitwise_not.default, _aten.logical_not.default),
      methods="logical_not bitwise_not __invert__")
spell("cast", "input memory_format", methods="bool int long", defaults={"memory_format": None},
      build=_cast)
for _name in ("le", "lt", "ge", "gt", "eq", "ne"):
    _packet = getattr(_aten, _name)
    spell(_name, "input other", functions=(getattr(operator, _name), getattr(torch, _name),
          _packet.Tensor, _packet.Scalar), methods=f"{_name} __{_name}__")
# fmt: on
