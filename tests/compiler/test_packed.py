"""Gate and up in one tensor: recognised where they are its halves, and read where they lie."""

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


def _half(x: Tensor) -> int:
    return x.shape[-1] // 2


SPLITS: dict[str, Callable[[Tensor], Any]] = {
    "chunk": lambda x: x.chunk(2, -1),
    "chunk_last": lambda x: torch.chunk(x, chunks=2, dim=2),
    "split": lambda x: x.split(_half(x), dim=-1),
    "split_sizes": lambda x: torch.split(x, [_half(x), _half(x)], -1),
    "slices": lambda x: (x[..., : _half(x)], x[..., _half(x) :]),
    "negative": lambda x: (x[:, :, : -_half(x)], x[:, :, -_half(x) :]),
    "narrow": lambda x: (x.narrow(-1, 0, _half(x)), torch.narrow(x, 2, _half(x), _half(x))),
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": _new,
}


@DTYPES
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_splits(compare: Any, name: str, split: str, dtype: torch.dtype) -> None:
    """The gradient of the packed tensor is one tensor, and no slice is left."""

    def f(x: Tensor) -> Tensor:
        gate, up = SPLITS[split](x)
        return up * ACTIVATIONS[name](gate)

    report = compare(f, _x(2, 5, 2 * 17, dtype=dtype))
    assert report.counts() == {f"{name}_mul_packed": 1} and not report.refusals, report
    assert compare.targets() == [getattr(torch.ops.fusewheel, f"{name}_mul_packed").default]


def test_gelu_by_erf(compare: Any) -> None:
    """The form reaches the operator."""

    def f(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return F.gelu(gate) * up

    assert compare(f, _x(5, 34)).counts() == {"gelu_mul_packed": 1}
    (call,) = (n for n in compare.graphs[0].graph.nodes if n.op == "call_function")
    assert call.args[1:] == (False,)


APART: dict[str, tuple[Callable[[Tensor], Any], str | None]] = {
    "up_gate": (lambda x: x.chunk(2, -1)[::-1], "[up | gate]"),
    "other_dimension": (lambda x: x.chunk(2, 0), None),
    "quarters": (lambda x: x.chunk(4, -1)[:2], None),
    "tail": (lambda x: x.chunk(4, -1)[2:], None),
    "overlap": (lambda x: (x[..., :5], x[..., 3:]), None),
    "gap": (lambda x: (x[..., :3], x[..., 5:]), None),
    "shifted": (lambda x: (x[..., 2:6], x[..., 4:]), None),
    "even_and_odd": (lambda x: (x[..., ::2], x[..., 1::2]), None),
    "same_half": (lambda x: (x[..., :4], x[..., :4]), None),
    "two_tensors": (lambda x: (x[..., :4], (x + 1)[..., 4:]), None),
    "changed": (lambda x: (x[..., :4] + 1, x[..., 4:]), None),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("case", APART)
def test_halves_that_are_none(compare: Any, name: str, case: str) -> None:
    """The operator of separate tensors reads them where they lie."""
    split, reason = APART[case]

    def f(x: Tensor) -> Tensor:
        gate, up = split(x)
        return ACTIVATIONS[name](gate) * up

    report = compare(f, _x(8, 3, 8))
    assert report.counts() == {f"{name}_mul": 1}, report
    assert [r.pattern for r in report.refusals] == [f"{name}_mul_packed"] * (reason is not None)
    assert reason is None or reason in report.refusals[0].reason


USES: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "gate": lambda gate, up, x: gate.sin(),
    "up": lambda gate, up, x: up + 1,
    "packed": lambda gate, up, x: x * 2,
}


@pytest.mark.parametrize("use", USES)
def test_values_used_elsewhere(compare: Any, use: str) -> None:
    def f(x: Tensor) -> Any:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up, USES[use](gate, up, x)

    assert compare(f, _x(3, 8)).counts() == {"silu_mul_packed": 1}


WRITES: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Any], int]] = {
    "packed": (lambda x, gate, up: x.add_(1), 0),
    "gate": (lambda x, gate, up: gate.add_(1), 0),
    "up": (lambda x, gate, up: up[:1].add_(1), 0),
    "other": (lambda x, gate, up: (x * 1).add_(1), 1),
}


@pytest.mark.parametrize("write", WRITES)
def test_writes_in_place(compare: Any, write: str) -> None:
    function, count = WRITES[write]

    def f(x: Tensor) -> Tensor:
        x = x * 1.0
        gate, up = x.chunk(2, -1)
        s = F.silu(gate)
        function(x, gate, up)
        return s * up + x.mean()

    with torch.no_grad():
        report = compare(f, _x(3, 8))
    assert report.counts() == ({"silu_mul_packed": 1} if count else {}), report
    assert count or all("writes in place" in refusal.reason for refusal in report.refusals)


def test_silu_in_place(compare: Any) -> None:
    def f(x: Tensor) -> Tensor:
        gate, up = (x * 1.0).chunk(2, -1)
        return F.silu(gate, inplace=True) * up

    report = compare(f, _x(3, 8, grad=False), inner="eager")
    assert report.counts() == {}
    assert "used elsewhere" in report.refusals[0].reason


@pytest.mark.parametrize("layout", ["transposed", "strided", "rows"])
def test_layouts(compare: Any, layout: str) -> None:
    x = {
        "transposed": _x(2, 8, 3).detach().transpose(1, 2),
        "strided": _x(2, 3, 16).detach()[..., ::2],
        "rows": _x(2, 3, 12).detach()[..., 2:10],
    }[layout]

    def f(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return (F.silu(gate) * up) @ torch.ones(4, 2).to(x)

    assert compare(f, x.requires_grad_()).count() == 1
    compiled, _ = compare.compile(lambda x: F.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], "eager")
    eager = F.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]
    assert compiled(x).stride() == eager.stride()


def test_dynamic_shapes(compare: Any) -> None:
    weight = torch.nn.Parameter(torch.randn(16, 8))  # of fixed size

    def f(x: Tensor, y: Tensor) -> Tensor:
        gate, up = F.linear(x, weight).chunk(2, -1)
        return _new(gate) * up + F.gelu(y) * F.linear(x, weight[8:])

    compiled, recorder = compare.compile(f, "eager", dynamic=True)
    for rows in (3, 5, 7):
        args = _x(2, rows, 8), _x(2, rows, 8)
        torch.testing.assert_close(compiled(*args), f(*args))
    assert recorder.graphs == 1
    assert recorder.report().counts() == {"gelu_mul": 1, "gelu_mul_packed": 1}


def test_autocast(compare: Any) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            gate, up = F.linear(x, w).chunk(2, -1)
            return F.gelu(gate) * up + F.gelu(x) * F.linear(x, w[:16])

    report = compare(f, _x(3, 16), _x(32, 16))
    assert report.counts() == {"gelu_mul_packed": 1, "gelu": 1}, report


def test_exported_program() -> None:
    from fusewheel.compiler import rewrite

    class Block(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            gate, up = x.chunk(2, -1)
            return _new(gate) * up

    x = _x(3, 8, grad=False)
    program = torch.export.export(Block(), (x,))
    report = rewrite(program.graph_module)
    assert report.counts() == {"gelu_mul_packed": 1}, report
    torch.testing.assert_close(program.module()(x), Block()(x))


def test_inductor(compare: Any) -> None:
    def f(x: Tensor) -> Tensor:
        gate, up = (x + 1).chunk(2, -1)
        return F.silu(gate) * up + _new(up) * gate

    report = compare(f, _x(3, 16), inner="inductor")
    assert report.counts() == {"silu_mul_packed": 1, "gelu_mul": 1}
