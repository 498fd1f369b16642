"""Writes arithmetic as polynomials, so that equal formulas are equal however they are written."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator

import torch
from torch.fx import Node

from fusewheel._core.dtypes import accumulation_dtype
from fusewheel.compiler.ir.canonical import View, view
from fusewheel.compiler.ir.metadata import tensor_of, value_of
from fusewheel.compiler.read.precision import number

Polynomial = dict[tuple[int, ...], float]

_ARITHMETIC = frozenset({"add", "mul", "div", "neg", "pow", "square"})
# The limit of nested operations; formulas of activations have far fewer.
_DEPTH = 8
_DEGREE = 3


def polynomial(value: object, *variables: Node) -> Polynomial | None:
    """A value as a polynomial of other values; None if it is not computed from them and constants.

    A number that Dynamo made symbolic is taken with its present value. A match that relies on it
    has to fix it by a guard, see `between`.

    Returns:
        the coefficients by the exponents of the variables: ``0.5 * x + 0.5 * x * t`` of ``x`` and
        ``t`` is ``{(1, 0): 0.5, (1, 1): 0.5}``.
    """
    return _expand(value, variables, _DEPTH)


def between(variable: Node, value: Node) -> frozenset[Node]:
    """The tensors between a variable and `value`, a polynomial of it; without these two.

    Symbolic numbers among them are fixed by a guard.
    """
    found: set[Node] = set()
    todo = [value]
    while todo:
        node = todo.pop()
        if tensor_of(node) is None:
            number(node)
        elif node is not variable and node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return frozenset(found - {value})


def equal(a: Polynomial, b: Polynomial, dtype: torch.dtype | None) -> bool:
    """Whether two polynomials are equal within the precision of computing in `dtype`."""
    wide = accumulation_dtype(dtype)
    tolerance = 2 * torch.finfo(wide).eps
    return a.keys() == b.keys() and all(abs(a[p] - b[p]) <= tolerance * abs(b[p]) for p in b)


def terms(value: object) -> Iterator[Node]:
    """A value and the values that arithmetic computes it from, nearest first; each may be the
    variable of a formula.
    """
    level, seen = [value], set()
    for _ in range(_DEPTH):
        following: list[object] = []
        for term in level:
            if isinstance(term, Node) and term not in seen and tensor_of(term) is not None:
                seen.add(term)
                yield term
                found = _arithmetic(term)
                following += () if found is None else found.args
        level = following


def _constant(value: object) -> float | None:
    """A Python number; for a symbolic one its present value."""
    if isinstance(value, Node):
        value = value_of(value)
    if isinstance(value, torch.SymFloat):
        value = value.node.hint
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def _arithmetic(value: object) -> View | None:
    found = view(value)
    return found if found is not None and found.op in _ARITHMETIC and not found.inplace else None


def _expand(value: object, variables: tuple[Node, ...], depth: int) -> Polynomial | None:
    constant = _constant(value)
    if constant is not None:
        return {(0,) * len(variables): constant}
    if value in variables:
        return {tuple(int(variable is value) for variable in variables): 1.0}
    found = _arithmetic(value)
    if found is None or not depth:
        return None
    operands = []
    for argument in found.args:
        operand = _expand(argument, variables, depth - 1)
        if operand is None:
            return None
        operands.append(operand)
    return _compute(found.op, operands[0], operands[-1])


def _compute(op: str, a: Polynomial, b: Polynomial) -> Polynomial | None:
    """One operation on polynomials; an operation with one operand gets it twice."""
    if op == "add":
        return {powers: a.get(powers, 0.0) + b.get(powers, 0.0) for powers in {**a, **b}}
    if op in ("mul", "square"):
        return _product(a, b)
    if op == "neg":
        return {powers: -factor for powers, factor in a.items()}
    if any(map(any, b)):
        return None
    (constant,) = b.values()
    if op == "div":
        return {powers: factor / constant for powers, factor in a.items()} if constant else None
    if constant not in (2, 3):
        return None
    square = _product(a, a)
    return square if square is None or constant == 2 else _product(square, a)


def _product(a: Polynomial, b: Polynomial) -> Polynomial | None:
    result: Polynomial = {}
    for left, right in itertools.product(a, b):
        powers = tuple(map(operator.add, left, right))
        if sum(powers) > _DEGREE:
            return None
        result[powers] = result.get(powers, 0.0) + a[left] * b[right]
    return result
