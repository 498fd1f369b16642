"""Gated GELU: what is recognised and what is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F

assert fusewheel
Tensor = torch.Tensor
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def _x(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return (2 * torch.randn(*shape)).to(dtype).requires_grad_(grad)


def _new(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


def _python(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


GATES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool]] = {
    "erf": (lambda g, u: F.gelu(g) * u, False),
    "tanh": (lambda g, u: F.gelu(g, approximate="tanh") * u, True),
    "swapped": (lambda g, u: u * F.gelu(g), False),
    "method": (lambda g, u: u.mul(torch.nn.GELU("tanh")(g)), True),
    "new": (lambda g, u: _new(g) * u, True),
    "new_swapped": (lambda g, u: torch.mul(u, _new(g)), True),
    "python": (lambda g, u: _python(g) * u, False),
    "of_itself": (lambda g, u: F.gelu(g) * g + u, False),
    "aten": (lambda g, u: torch.ops.aten.mul.Tensor(u, torch.ops.aten.gelu.default(g)), False),
}


def _arguments(compare: Any) -> list[Any]:
    nodes = [node for gm in compare.graphs for node in gm.graph.nodes]
    return [n.args[2:] for n in nodes if n.target is torch.ops.fusewheel.gelu_mul.default]


@DTYPES
@pytest.mark.parametrize("gate", GATES)
def test_gates(compare: Any, gate: str, dtype: torch.dtype) -> None:
    function, tanh = GATES[gate]
    report = compare(function, _x(7, 33, dtype=dtype), _x(7, 33, dtype=dtype))
    assert report.counts() == {"gelu_mul": 1} and not report.refusals, report
    assert _arguments(compare) == [(tanh,)]


@pytest.mark.parametrize("which", [(True, False), (False, True), (False, False)])
def test_requires_grad_is_kept(compare: Any, which: tuple[bool, bool]) -> None:
    args = _x(3, 8, grad=which[0]), _x(3, 8, grad=which[1])
    assert compare(GATES["new"][0], *args).counts() == {"gelu_mul": 1}


OTHERS: dict[str, tuple[Callable[[Tensor, Tensor], Any], int, str | None]] = {
    "sum": (lambda g, u: F.gelu(g) + u, 1, None),
    "constant": (lambda g, u: F.gelu(g) * 2.0 + u, 1, None),
    "broadcast": (lambda g, u: F.gelu(g) * u[:1], 1, "different shapes"),
    "other_dtype": (lambda g, u: _new(g) * u.double(), 1, "torch.float64"),
    "square": (lambda g, u: (lambda s: s * s)(F.gelu(g)) + u, 1, "not multiplied"),
    "used_twice": (lambda g, u: (lambda s: s * u + s)(_python(g)), 1, "used 2 times"),
    "in_place": (lambda g, u: F.gelu(g).mul_(u), 1, "in place"),
    "quick": (lambda g, u: g * torch.sigmoid(1.702 * g) * u, 0, None),
    "product_inside": (lambda g, u: 0.5 * u * g * (1 + torch.erf(g * math.sqrt(0.5))), 0, None),
    "relu": (lambda g, u: F.relu(g) * u, 0, None),
}


@pytest.mark.parametrize("case", OTHERS)
def test_others(compare: Any, case: str) -> None:
    """Where only the product is in the way, gelu alone is replaced."""
    function, count, reason = OTHERS[case]
    report = compare(function, _x(3, 4), _x(3, 4))
    assert report.counts() == ({"gelu": 1} if count else {}), report
    found = [refusal.reason for refusal in report.refusals if refusal.pattern == "gelu_mul"]
    assert len(found) == (reason is not None), report
    assert reason is None or reason in found[0]
