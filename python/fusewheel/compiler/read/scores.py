"""Reads attention that a model writes out: scores before ``softmax``, and the product after it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import split_operands, view
from fusewheel.compiler.ir.metadata import Size, dtype_of, same_sizes, shape_of
from fusewheel.compiler.ir.pattern import Refuse, require, sole_user
from fusewheel.compiler.read.precision import number
from fusewheel.compiler.read.sinks import drops_last, sinks_of

_STEPS = ("add", "mul", "div", "masked_fill", "cast", "tanh")
_PRODUCTS = ("matmul", "bmm", "einsum")
# How many operations may lie between a softmax and a product.
_DEPTH = 8


@dataclass(frozen=True)
class Operand:
    """A tensor and the order of its dimensions for attention; None for the order it has."""

    node: Node
    order: tuple[int, ...] | None = None

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The shape in that order."""
        shape = shape_of(self.node) or ()
        return shape if self.order is None else tuple(shape[d] for d in self.order)


@dataclass
class Scores:
    """The argument of a softmax: ``query @ key^T * scale`` with a soft cap, a mask and sinks.

    Attributes:
        query: ``[..., queries, features]``.
        key: ``[..., keys, features]``.
        product: their product.
        scale: the factor of the product.
        softcap: the number in ``softcap * tanh(query @ key^T * scale / softcap)``; 0 without it.
        sinks: a logit for each head that counts in the softmax and has no value; ``[heads]``, or
            with more dimensions of size 1. None without sinks.
        added: the tensor that is added to the scores; None if there is none.
        filled: the condition and the number of a ``masked_fill``; None if there is none.
        interior: the nodes from the product to the softmax.
        absorbed: the transposed key.
    """

    query: Operand
    key: Operand
    product: Node
    scale: float = 1.0
    softcap: float = 0.0
    sinks: Node | None = None
    added: Node | None = None
    filled: tuple[Node, float] | None = None
    interior: set[Node] = field(default_factory=set)
    absorbed: set[Node] = field(default_factory=set)


def is_weights(node: Node, steps: int = _DEPTH) -> bool:
    """Whether the result of a softmax, maybe after casts and dropout, is a factor of a product."""
    for user in node.users:
        found = view(user)
        if found is not None and found.op in _PRODUCTS:
            return True
        kept = drops_last(user) or (
            _is_dropout(user) if found is None else found.op in ("cast", "dropout")
        )
        if kept and steps and is_weights(user, steps - 1):
            return True
    return False


def is_extended(softmax: Node) -> bool:
    """Whether the scores have a soft cap or sinks, which PyTorch's attention has not."""
    found = view(softmax)
    node: Any = None if found is None else found.args[0]
    if sinks_of(node) is not None:
        return True
    while (found := view(node)) is not None and found.op in _STEPS:
        if found.op == "tanh":
            return True
        node = _towards_product(found.args)
    return False


def _is_dropout(node: Node) -> bool:
    """Whether a node is an active dropout; `view` understands inactive ones."""
    return "dropout" in str(getattr(node.target, "__name__", node.target))


def scores_of(softmax: Node) -> Scores | None:
    """The scores that a softmax takes; None if they do not come from a product.

    Raises:
        Refuse: if a fused attention does something else between the product and the softmax.
    """
    chain: list[Node] = []
    found = view(softmax)
    node: Any = None if found is None else found.args[0]
    sinks = sinks_of(node)
    node = node if sinks is None else sinks.scores
    while (found := view(node)) is not None and found.op not in _PRODUCTS:
        if found.op not in _STEPS:
            break
        chain.append(node)
        node = _towards_product(found.args)
    found = view(node)
    if found is None or not isinstance(node, Node) or found.op not in _PRODUCTS:
        return None
    scores = _of_product(node)
    if scores is None:
        return None
    scores.interior = {*chain, node}
    for step in reversed(chain):
        _apply(scores, step, node)
        node = step
    if sinks is not None:
        scores.sinks = sinks.logits()
        scores.interior |= sinks.interior
    return scores


def _towards_product(args: tuple[Any, ...]) -> Any:
    """The operand that the scores are computed from."""
    nodes = [arg for arg in args if isinstance(arg, Node)]
    return next((arg for arg in nodes[:2] if _has_product(arg)), nodes[0] if nodes else None)


def _has_product(node: Any, steps: int = _DEPTH) -> bool:
    found = view(node)
    if found is None or steps == 0:
        return False
    if found.op in _PRODUCTS:
        return True
    return found.op in _STEPS and any(_has_product(arg, steps - 1) for arg in found.args[:2])


def _apply(scores: Scores, step: Node, below: Node) -> None:
    found = view(step)
    assert found is not None
    require(not found.inplace, "the scores are written in place")
    masked = scores.added is not None or scores.filled is not None
    shape = shape_of(below)
    require(same_sizes(shape_of(step), shape), "the mask broadcasts the scores to another shape")
    if found.op == "cast":
        wide, narrow = dtype_of(step), dtype_of(below)
        if wide is None or narrow is None or torch.promote_types(narrow, wide) != wide:
            raise Refuse(f"the scores are rounded to {wide}")
    elif found.op in ("mul", "div"):
        require(not masked, "the scores are scaled after they are masked")
        other = split_operands(step, "mul", below) if found.op == "mul" else found.args[1]
        value = number(other)
        if value is None or (found.op == "div" and found.args[0] is not below):
            raise Refuse("the scale is not a Python number")
        require(value > 0 and math.isfinite(value), f"the scores are scaled by {value:g}")
        if found.op == "mul":
            scores.scale, scores.softcap = scores.scale * value, scores.softcap * value
        else:
            scores.scale, scores.softcap = scores.scale / value, scores.softcap / value
    elif found.op == "tanh":
        require(not masked, "the scores are capped after they are masked")
        require(not scores.softcap, "the scores are capped twice")
        scores.softcap = 1.0
    elif found.op == "add":
        mask = split_operands(step, "add", below)
        if not isinstance(mask, Node) or shape_of(mask) is None:
            raise Refuse("what is added to the scores is not a tensor")
        require(not masked, "the scores are masked twice")
        scores.added = mask
    else:
        require(not masked, "the scores are masked twice")
        value = number(found.args[2])
        if found.args[0] is not below or not isinstance(found.args[1], Node) or value is None:
            raise Refuse("the scores are not filled with a Python number")
        scores.filled = found.args[1], value


def _of_product(node: Node) -> Scores | None:
    found = view(node)
    assert found is not None
    query, key = found.args
    if found.op != "einsum":
        inner = view(key)
        rank = len(shape_of(key) or ())
        swapped = (*range(rank - 2), rank - 1, rank - 2)
        if inner is not None and inner.op == "permute" and inner.attrs["dims"] == swapped:
            return Scores(Operand(query), Operand(inner.args[0]), node, absorbed={key})
        return Scores(Operand(query), Operand(key, swapped), node)
    first, second, result = found.attrs["labels"]
    if len(result) < 3:
        return None
    batch, (q, k) = result[:-2], result[-2:]
    if q in second:
        query, key, first, second = key, query, second, first
    d = "".join(set(first) - set(result))
    if len(d) != 1 or set(first) != {*batch, q, d} or set(second) != {*batch, k, d}:
        return None
    return Scores(_ordered(query, first, batch + q + d), _ordered(key, second, batch + k + d), node)


def _ordered(node: Node, labels: str, wanted: str) -> Operand:
    order = tuple(labels.index(label) for label in wanted)
    return Operand(node, None if order == tuple(range(len(order))) else order)


@dataclass(frozen=True)
class Weighted:
    """``weights @ value``.

    Attributes:
        value: ``[..., keys, value features]``.
        root: the product.
        interior: the nodes from the softmax to the product, without the product.
        order: the permutation of attention's result that gives the product; None if they are equal.
    """

    value: Operand
    root: Node
    interior: frozenset[Node]
    order: tuple[int, ...] | None = None


def weighted_by(softmax: Node, sinks: bool) -> Weighted:
    """The product of the weights and the values.

    Args:
        softmax: the weights.
        sinks: whether the last column of the weights has no value, and has to be dropped.

    Raises:
        Refuse: if the weights are used for something else, or dropout is active.
    """
    weights, interior = softmax, {softmax}
    while True:
        user = sole_user(weights, "the attention weights, or what is made of them,")
        found = view(user)
        if sinks and drops_last(user):
            sinks = False
        elif found is None or found.op not in ("cast", "dropout"):
            break
        interior.add(user)
        weights = user
    require(not sinks, "the weight of the sinks is not dropped")
    if found is None and _is_dropout(user):
        raise Refuse("dropout is active: other random numbers would be drawn")
    if found is None or found.op not in _PRODUCTS:
        raise Refuse("the weights are not multiplied by values")
    if found.op == "einsum":
        return _weighted_einsum(user, weights, frozenset(interior))
    require(found.args[0] is weights, "the weights are not the left factor of a product")
    return Weighted(Operand(found.args[1]), user, frozenset(interior))


def _weighted_einsum(node: Node, weights: Node, interior: frozenset[Node]) -> Weighted:
    found = view(node)
    assert found is not None
    first, second, result = found.attrs["labels"]
    value = found.args[1]
    if found.args[0] is not weights:
        first, second, value = second, first, found.args[0]
    batch, (q, k) = first[:-2], first[-2:]
    e = "".join(set(second) - set(first))
    fits = len(e) == 1 and set(second) == {*batch, k, e} and set(result) == {*batch, q, e}
    require(fits and value is not weights, "the weights are not multiplied by values")
    mine = batch + q + e
    order = tuple(mine.index(label) for label in result)
    plain = order == tuple(range(len(order)))
    return Weighted(
        _ordered(value, second, batch + k + e), node, interior, None if plain else order
    )
