"""Finds the logits behind a loss.

The operators take a matrix with a row of logits for each target. `rows_of` goes back from the
argument of a loss to earlier values with the same rows: before they were flattened, cast, or
shifted by one token.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import is_op, operands, rank_of, split_operands, view
from fusewheel.compiler.ir.metadata import dtype_of, same_size, shape_of
from fusewheel.compiler.ir.pattern import Builder, Context, require
from fusewheel.compiler.read.losses import LossCall
from fusewheel.compiler.read.precision import number

Index = tuple[slice, ...]


@dataclass(frozen=True)
class Rows:
    """A value whose last dimension holds the rows of a loss.

    Attributes:
        node: the value, in the dtype of the loss, or in bfloat16 if that is float32.
        part: the rows that the loss takes, as an index of all dimensions but the last; None for
            all.
        passed: the nodes between the value and the loss.
        own: those of them up to the last one that does more than rearrange and cast.
        softcap: the loss takes ``softcap * tanh(rows / softcap)``; 0 if it takes the rows.
    """

    node: Node
    part: Index | None = None
    passed: frozenset[Node] = frozenset()
    own: frozenset[Node] = frozenset()
    softcap: float = 0.0

    def matrix(self, builder: Builder, node: Node) -> Node:
        """A value with the leading dimensions of `node`, as a matrix of the rows of the loss."""
        for dim, part in enumerate(self.part or ()):
            if part != slice(None):
                bounds = part.start, part.stop, 1 if part.step is None else part.step
                node = builder.call(torch.ops.aten.slice.Tensor, node, dim, *bounds)
        if rank_of(node) == 2:
            return node
        return builder.call(torch.ops.aten.flatten.using_ints, node, 0, -2)


@dataclass(frozen=True)
class _Walk:
    """A step of `rows_of`; `classes` is the dimension of the classes."""

    rows: Rows
    classes: int
    of_logits: bool


def rows_of(context: Context, loss: LossCall) -> list[Rows]:
    """The values with the rows of a loss, nearest first.

    Raises:
        Refuse: if there is none.
    """
    walk: _Walk | None = _Walk(Rows(loss.logits), 1, loss.of_logits)
    found, end = [], loss.of_logits
    while walk is not None:
        node, end = walk.rows.node, walk.of_logits
        if end and walk.classes == (rank_of(node) or 0) - 1:
            found.append(walk.rows)
        same_modes = context.modes[node] == context.modes[loss.root]
        walk = _before(walk) if same_modes else None
    require(end, "the loss is not taken of a log_softmax over the classes")
    require(bool(found), "the classes are not in the last dimension")
    return found


def _before(walk: _Walk) -> _Walk | None:
    """One operation further back; None if the operators cannot do what it does."""
    node, rows = walk.rows.node, walk.rows
    index = None if rows.part is not None else _index(node, walk.classes)
    step = view(node)
    if index is not None:
        source = node.args[0] if step is None else step.args[0]
        assert isinstance(source, Node)
        return replace(walk, rows=_passed(rows, source, part=index))
    if rows.softcap == 0 and walk.of_logits and (capped := _capped(node)) is not None:
        passed = rows.passed | capped.passed
        return replace(walk, rows=replace(capped, part=rows.part, passed=passed, own=passed))
    if step is None or step.inplace or not step.args or not isinstance(step.args[0], Node):
        return None
    source = step.args[0]
    before = replace(walk, rows=_passed(rows, source))
    if step.op == "contiguous" or (step.op == "cast" and keeps_precision(source, node)):
        return before
    if step.op == "log_softmax" and not walk.of_logits and keeps_precision(source, node):
        own = before.rows.passed
        same = step.attrs["dim"] == walk.classes
        return replace(before, rows=replace(before.rows, own=own), of_logits=True) if same else None
    if rows.part is not None:  # its indices belong to the dimensions after this operation
        return None
    if step.op == "permute":
        order = step.attrs["dims"]
        others = [d for i, d in enumerate(order) if i != walk.classes]
        return replace(before, classes=order[walk.classes]) if others == sorted(others) else None
    if step.op == "reshape" and dtype_of(source) == dtype_of(node):
        sizes, last = shape_of(source) or (), shape_of(node) or ()
        keeps = walk.classes == len(last) - 1 and len(sizes) > 1 and same_size(sizes[-1], last[-1])
        return replace(before, classes=len(sizes) - 1) if keeps else None
    return None


def _capped(node: Node) -> Rows | None:
    """The argument of a soft cap, and the cap."""
    pair = operands(node, "mul") or ()
    tanh = next((side for side in pair if is_op(side, "tanh")), None)
    (scaled,) = operands(tanh, "tanh") or (None,)
    quotient = operands(scaled, "div")
    if tanh is None or scaled is None or quotient is None or not isinstance(quotient[0], Node):
        return None
    factor, divisor = number(split_operands(node, "mul", tanh)), number(quotient[1])
    if factor is None or factor != divisor or factor <= 0:
        return None
    return Rows(quotient[0], passed=frozenset({node, tanh, scaled}), softcap=factor)


def _passed(rows: Rows, source: Node, **changes: Any) -> Rows:
    return replace(rows, node=source, passed=rows.passed | {rows.node}, **changes)


def keeps_precision(narrow: Node, wide: Node) -> bool:
    """Whether an operator that computes in float32 may take `narrow` and not its cast `wide`.

    `linear_cross_entropy` rounds gradients to the narrow dtype before it scales them, and float16
    would underflow.
    """
    dtypes = dtype_of(narrow), dtype_of(wide)
    return dtypes[0] == dtypes[1] or dtypes == (torch.bfloat16, torch.float32)


def _index(node: Node, classes: int) -> Index | None:
    """The index of a node that slices dimensions before the last one, which has the classes.

    `view` knows slices with fixed bounds only; here they may depend on a symbolic size.
    """
    found = view(node)
    if found is not None and found.op == "slice":
        source, dim = found.args[0], found.attrs["dim"]
        bounds = slice(found.attrs["start"], found.attrs["stop"], found.attrs["step"])
        items: list[object] = [*[slice(None)] * dim, bounds]
    elif node.op == "call_function" and node.target is operator.getitem:
        source, given = node.args
        items = list(given) if isinstance(given, tuple) else [given]
    else:
        return None
    before, after = shape_of(source), shape_of(node)
    if before is None or after is None or len(before) != len(after) or classes != len(after) - 1:
        return None
    if items.count(Ellipsis) == 1:
        at = items.index(Ellipsis)
        items[at : at + 1] = [slice(None)] * (len(before) - len(items) + 1)
    if not all(isinstance(item, slice) for item in items):
        return None
    # A slice with the size of its dimension takes all of it.
    return tuple(items[:classes]) if same_size(before[-1], after[-1]) else None  # type: ignore[arg-type]


def implicit_casts(loss: LossCall, rows: Rows) -> frozenset[Node]:
    """The loss function and the log_softmax, if they convert their argument to a wider dtype."""
    nodes = {node for node in rows.own if is_op(node, "log_softmax")} | {loss.root}
    pairs = ((node, node.args[0] if node.args else node.kwargs.get("input")) for node in nodes)
    return frozenset(
        n for n, taken in pairs if isinstance(taken, Node) and keeps_precision(taken, n)
    )
