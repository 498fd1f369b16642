"""Arithmetic as polynomials: what is read, and how far it is followed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from compiler.graphs import nodes_of
from fusewheel.compiler.read import polynomial as module
from fusewheel.compiler.read.polynomial import between, equal, polynomial, terms

X, Y = torch.randn(3), torch.randn(3)


def read(function: Any) -> Any:
    value, x, y = nodes_of(lambda x, y: function(x, y), X, Y)
    return polynomial(value, x, y)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, y: x + 2, {(1, 0): 1, (0, 0): 2}),
        (lambda x, y: x + x, {(1, 0): 2}),
        (lambda x, y: 3 * x * y, {(1, 1): 3}),
        (lambda x, y: (x + y) * (x + 1), {(2, 0): 1, (1, 0): 1, (1, 1): 1, (0, 1): 1}),
        (lambda x, y: -x, {(1, 0): -1}),
        (lambda x, y: x / 4, {(1, 0): 0.25}),
        (lambda x, y: torch.square(x), {(2, 0): 1}),
        (lambda x, y: x**2, {(2, 0): 1}),
        (lambda x, y: x**3, {(3, 0): 1}),
        (lambda x, y: x**4, None),
        (lambda x, y: x / y, None),
        (lambda x, y: x**y, None),
        (lambda x, y: x * True, None),
        (lambda x, y: x / 0, None),
        (lambda x, y: x * x * x * y, None),
        (lambda x, y: (x * x) ** 2, None),
        (lambda x, y: x.tanh() + 1, None),
        (lambda x, y: 1 + x.tanh(), None),
        (lambda x, y: x.clone().add_(1), None),
    ],
)
def test_formulas(function: Any, expected: Any) -> None:
    assert read(function) == expected


def summed(count: int) -> Any:
    def function(x: Any, y: Any) -> Any:
        for _ in range(count):
            x = x + 1
        return x

    return function


def test_how_deep_formulas_are_followed() -> None:
    assert read(summed(module._DEPTH)) == {(1, 0): 1, (0, 0): module._DEPTH}
    assert read(summed(module._DEPTH + 1)) is None
    value, _, _ = nodes_of(lambda x, y: summed(20)(x, y), X, Y)
    assert len(list(terms(value))) == module._DEPTH


def test_terms_are_the_nearest_first() -> None:
    value, *_ = nodes_of(lambda x, y: (x.tanh() + x) * y, X, Y)
    names = [node.name for node in terms(value)]
    assert names == [value.name, "add", "y", "tanh", "x"]
    assert list(terms(2)) == []


def test_what_lies_between() -> None:
    value, x, _ = nodes_of(lambda x, y: (x * 2 + 1) * x, X, Y)
    assert {node.name for node in between(x, value)} == {"mul", "add"}


def test_equal_within_the_precision() -> None:
    eps = torch.finfo(torch.float32).eps
    for dtype in (torch.float32, torch.bfloat16):
        assert equal({(1,): 4 + 7 * eps}, {(1,): 4.0}, dtype)
        assert equal({(1,): 4 - 7 * eps}, {(1,): 4.0}, dtype)
        assert not equal({(1,): 4 + 9 * eps}, {(1,): 4.0}, dtype)
    assert not equal({(1,): 4 + 7 * eps}, {(1,): 4.0}, torch.float64)
    assert equal({(1,): 0.0}, {(1,): 0.0}, torch.float32)
    assert equal({(1,): -4 - 7 * eps}, {(1,): -4.0}, torch.float32)
    assert not equal({(1,): 1.0}, {(1,): 1.0, (2,): 0.0}, torch.float32)
    assert not equal({(1,): 1.0, (2,): 3.0}, {(1,): 1.0, (2,): 2.0}, torch.float32)
    assert not equal({(1,): math.nan}, {(1,): 1.0}, torch.float32)
