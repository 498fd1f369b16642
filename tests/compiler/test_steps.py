"""Steps of programs: an operator is the same step however the graph names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiler.graphs import captured
from fusewheel.compiler.lower.steps import Call, call_of
from torch import Tensor

aten = torch.ops.aten
HEADS = torch.randn(2, 4, 1, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)
SEEN = torch.ones(2, 1, 1, 9, dtype=torch.bool)
ROWS = torch.randn(3, 8), torch.randn(3, 8)


def last_step(function: Callable[..., Tensor], *given: Tensor) -> Call:
    (output,) = captured(function, *given).graph.find_nodes(op="output")
    found = call_of(output.args[0])
    assert found is not None
    return found


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def named_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    result: Tensor = aten.scaled_dot_product_attention.default(q, k, v, enable_gqa=True)
    return result


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


def named_masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    result: Tensor = aten.scaled_dot_product_attention.default(q, k, v, mask, enable_gqa=True)
    return result


@pytest.mark.parametrize(
    ("by_function", "by_overload", "given"),
    [
        (attention, named_attention, HEADS),
        (masked, named_masked, (*HEADS, SEEN)),
        (lambda a, b: torch.add(a, b), lambda a, b: aten.add.Tensor(a, b), ROWS),
    ],
    ids=["attention", "attention with a mask", "sum"],
)
def test_by_function_and_by_overload(by_function: Any, by_overload: Any, given: Any) -> None:
    called, named = last_step(by_function, *given), last_step(by_overload, *given)
    assert isinstance(called.operator, str)  # a step of our own
    assert named.operator == called.operator
    assert [str(argument) for argument in named.arguments] == [
        str(argument) for argument in called.arguments
    ]
