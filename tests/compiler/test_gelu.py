"""GELU: its spellings, what resembles it, and when it is worth a replacement."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler.ir.pattern import Match
from fusewheel.compiler.patterns.gelu import PATTERN

assert fusewheel
Tensor = torch.Tensor
S = math.sqrt(2.0 / math.pi)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def _x(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return (3 * torch.randn(*shape)).to(dtype).requires_grad_(grad)


def _tanh(x: Tensor) -> Tensor:
    return torch.tanh(S * (x + 0.044715 * torch.pow(x, 3.0)))


ERF: dict[str, Callable[[Tensor], Tensor]] = {
    "function": F.gelu,
    "module": torch.nn.GELU(),
    "aten": lambda x: torch.ops.aten.gelu.default(x),
    "divided": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "multiplied": lambda x: 0.5 * x * (torch.erf(x * 0.7071067811865475) + 1),
    "half_last": lambda x: x * (1 + (x * math.sqrt(0.5)).erf()) / 2,
    "distributed": lambda x: 0.5 * x + torch.special.erf(x / 2**0.5).mul(x).mul(0.5),
    "distribution": lambda x: x.mul(0.5 + 0.5 * torch.erf(x.div(1.4142135623730951))),
}
TANH: dict[str, Callable[[Tensor], Tensor]] = {
    "function": lambda x: F.gelu(x, approximate="tanh"),
    "module": torch.nn.GELU("tanh"),
    "new": lambda x: 0.5 * x * (1.0 + _tanh(x)),
    "python": lambda x: x * 0.5 * (1.0 + _tanh(x)),
    "accurate": lambda x: 0.5 * x * (1 + torch.tanh(S * (x + 0.044715 * torch.pow(x, 3)))),
    "fast": lambda x: 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))),
    "operator": lambda x: (1 + (S * (x + 0.044715 * x**3)).tanh()) * (x / 2),
    "squared": lambda x: 0.5 * (x * (1 + F.tanh((x.square() * 0.044715 + 1) * x * S))),
    "distributed": lambda x: 0.5 * x + 0.5 * x * torch.tanh(S * x + (S * 0.044715) * x * x * x),
    "sigmoid": lambda x: x * torch.sigmoid(2 * S * (x + 0.044715 * x**3)),
    "negative": lambda x: -(0.5 * -x * (1.0 + _tanh(x))),
}


@DTYPES
@pytest.mark.parametrize("form", ERF)
def test_by_erf(compare: Any, form: str, dtype: torch.dtype) -> None:
    report = compare(ERF[form], _x(7, 33, dtype=dtype))
    assert report.counts() == {"gelu": 1} and not report.refusals, report
    assert _arguments(compare) == [(False,)]


@DTYPES
@pytest.mark.parametrize("form", TANH)
def test_by_tanh(compare: Any, form: str, dtype: torch.dtype) -> None:
    report = compare(TANH[form], _x(7, 33, dtype=dtype))
    assert report.counts() == {"gelu": 1} and not report.refusals, report
    assert _arguments(compare) == [(True,)]


def _arguments(compare: Any) -> list[Any]:
    nodes = [node for gm in compare.graphs for node in gm.graph.nodes]
    return [node.args[1:] for node in nodes if node.target is torch.ops.fusewheel.gelu.default]


@pytest.mark.parametrize("form", ["fast", "new", "function"])
def test_float64(compare: Any, form: str) -> None:
    """The constant of FastGELU has ten digits, too few for float64."""
    report = compare(TANH[form], _x(7, 33, dtype=torch.float64))
    assert report.count("gelu") == (form != "fast"), report


def test_nothing_of_the_formula_is_left(compare: Any) -> None:
    compare(TANH["new"], _x(7, 33))
    assert compare.targets() == [torch.ops.fusewheel.gelu.default]


OTHERS: dict[str, tuple[Callable[[Tensor], Any], str | None]] = {
    "quick": (lambda x: x * torch.sigmoid(1.702 * x), "sigmoid is taken of 1.702 * x"),
    "constant": (
        lambda x: 0.5 * x * (1 + torch.tanh(S * (x + 0.0447 * x**3))),
        "tanh is taken of 0.797885 * x + 0.035665",
    ),
    "few_digits": (lambda x: 0.5 * x * (1 + torch.erf(x * 0.7071)), "erf is taken of 0.7071 * x"),
    "square": (lambda x: 0.5 * x * (1 + torch.tanh(S * (x + 0.044715 * x**2))), "x ** 2"),
    "plain": (lambda x: 0.5 * x * (1 + torch.tanh(x)), "tanh is taken of 1 * x"),
    "silu": (lambda x: x * torch.sigmoid(x), None),
    "not_halved": (lambda x: x * (1 + _tanh(x)), None),
    "subtracted": (lambda x: 0.5 * x * (-1 + _tanh(x)), None),
    "other_factor": (lambda x: 0.5 * (x + 1) * (1 + _tanh(x)), None),
    "product": (lambda x: 0.5 * x * (1 + _tanh(x)) ** 2, None),
    "tensor": (lambda x: 0.5 * x * (1 + torch.erf(x / x.mean())), None),
    "tanh": (lambda x: torch.tanh(x) + x, None),
    "erf": (lambda x: 1 + torch.erf(x * 0.5), None),
    "rounded": (lambda x: x.bfloat16() * 0.5 * (1 + torch.erf(x * math.sqrt(0.5))), None),
}


@pytest.mark.parametrize("case", OTHERS)
def test_others(compare: Any, case: str) -> None:
    function, reason = OTHERS[case]
    report = compare(function, _x(3, 8))
    assert report.counts() == {}, report
    found = [refusal.reason for refusal in report.refusals if refusal.pattern == "gelu"]
    assert len(found) == (reason is not None), report
    assert reason is None or reason in found[0]


def test_integers(compare: Any) -> None:
    report = compare(ERF["divided"], torch.arange(4))
    assert report.counts() == {}
    assert "torch.int64 is not supported" in report.refusals[0].reason


def test_chain_of_arithmetic(compare: Any) -> None:
    """What gelu is taken of may be arithmetic itself, and its result as well."""

    def f(x: Tensor) -> Tensor:
        return TANH["new"](2 * x + 1) * 0.5 + ERF["divided"](TANH["fast"](x * x))

    assert compare(f, _x(3, 8)).counts() == {"gelu": 3}


def test_long_arithmetic(compare: Any) -> None:
    """The search gives up in time: as trees these are exponentially large."""

    def f(x: Tensor) -> Tensor:
        for _ in range(40):
            x = (x + 1) * 0.5 + x * 0.5
        return x * torch.sigmoid(x * 1.5) + torch.tanh(x)

    assert compare(f, _x(3, 8), inner="eager").counts() == {}


USES: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "input": (lambda x: (TANH["new"](x), x + 1, x.sin()), 1),
    "result": (lambda x: (lambda y: (y, y + 1))(TANH["new"](x)), 1),
    "tanh": (lambda x: (lambda t: (0.5 * x * (1 + t), t))(_tanh(x)), 0),
    "cube": (
        lambda x: (lambda c: (0.5 * x * (1 + torch.tanh(S * (x + 0.044715 * c))), c + 1))(x**3),
        0,
    ),
    "half": (lambda x: (lambda h: (h * (1 + _tanh(x)), h.sin()))(0.5 * x), 0),
}


@pytest.mark.parametrize("case", USES)
def test_values_used_elsewhere(compare: Any, case: str) -> None:
    function, count = USES[case]
    report = compare(function, _x(3, 8))
    assert report.count() == count, report
    assert any("also used" in r.reason for r in report.refusals) == (case in ("cube", "half"))


WRITES: dict[str, tuple[Callable[[Tensor], Any], str | None]] = {
    "result": (lambda x: F.gelu(x * 1.0).add_(1), None),
    "before": (lambda x: F.gelu((x * 1.0).mul_(2)), None),
    "input_inside": (
        lambda x: (lambda h: (lambda t: 0.5 * h.add_(1) * (1 + t))(_tanh(h)))(x * 1.0),
        None,
    ),
    "input_between": (
        lambda x: (lambda h: (lambda t: (h.add_(1), 0.5 * h * (1 + t))[1])(_tanh(h)))(x * 1.0),
        "writes in place what the pattern reads",
    ),
    "inside": (lambda x: 0.5 * x * _tanh(x).add_(1), None),
    "cube": (lambda x: 0.5 * x * (1 + torch.tanh(S * ((x**3).mul_(0.044715) + x))), None),
}


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", WRITES)
def test_writes_in_place(compare: Any, case: str, inner: str) -> None:
    function, reason = WRITES[case]
    with torch.no_grad():
        report = compare(function, _x(300, 300), inner=inner)
    assert report.count() == (case in ("result", "before")), report
    assert reason is None or reason in report.refusals[0].reason


def test_result_written_in_place_in_training(compare: Any) -> None:
    for inner in ("eager", "aot_eager"):
        report = compare(lambda x: F.gelu(x).mul_(2), _x(3, 8), inner=inner)
        assert report.counts() == {"gelu": 1}


def test_later_write_needed_by_backward(compare: Any) -> None:
    """Products with numbers keep nothing for backward; the operator would keep x."""

    def f(x: Tensor) -> Tensor:
        x = x * 1.0
        y = ERF["divided"](x)
        x.add_(1)
        return y + x

    report = compare(f, _x(3, 8), inner="eager")
    assert report.counts() == {}
    assert "what backward needs" in report.refusals[0].reason


@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded", "scalar", "empty"])
def test_layouts(compare: Any, layout: str) -> None:
    x = {
        "transposed": _x(6, 4).detach().t(),
        "sliced": _x(6, 8).detach()[:, ::2],
        "expanded": _x(1, 8).detach().expand(5, 8),
        "scalar": _x(1).detach()[0],
        "empty": _x(0, 3).detach(),
    }[layout]

    def f(x: Tensor) -> Tensor:
        return F.gelu(x) * 2 + TANH["new"](x).exp()

    compiled, recorder = compare.compile(f, "eager")
    torch.testing.assert_close(compiled(x.requires_grad_()), f(x))
    assert compiled(x).stride() == f(x).stride()
    assert recorder.report().count("gelu") == 2 or layout in ("sliced", "expanded")


def test_autocast(compare: Any) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return TANH["new"](F.linear(x, w)) + F.gelu(x)

    report = compare(f, _x(3, 16), _x(16, 16))
    assert report.counts() == {"gelu": 2}, report


def test_dynamic_shapes(compare: Any) -> None:
    """The constants of the formula are symbolic here, as everything Dynamo may vary."""
    function = lambda x: TANH["new"](F.gelu(x))  # noqa: E731
    compiled, recorder = compare.compile(function, "eager", dynamic=True)
    for shape in ((2, 6), (3, 7), (5, 11)):
        x = _x(*shape)
        torch.testing.assert_close(compiled(x), function(x))
    assert recorder.graphs == 1
    assert recorder.report().counts() == {"gelu": 2}


def test_symbolic_constants(compare: Any) -> None:
    """A constant of the formula is one as long as it has that value."""

    def f(x: Tensor, scale: float) -> Tensor:
        return 0.5 * x * (1 + torch.erf(x * scale))

    compiled, recorder = compare.compile(f, "eager", dynamic=True)
    for scale, count in ((math.sqrt(0.5), 1), (0.3, 1), (0.4, 1)):
        x = _x(3, 8)
        torch.testing.assert_close(compiled(x, scale), f(x, scale))
        assert recorder.report().count("gelu") == count
    assert recorder.graphs == 2  # for other numbers nothing is fixed


def test_other_devices_are_left_to_the_inner_compiler() -> None:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    for device, refused in (("cpu", False), ("meta", True)):
        y.meta["example_value"] = torch.empty(1 << 20, device=device)
        assert PATTERN.cost is not None
        assert bool(PATTERN.cost(Match((x,), (y,), frozenset(), lambda builder: []))) == refused


def test_inductor(compare: Any) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return TANH["new"](F.linear(x, w)) + F.gelu(x)

    assert compare(f, _x(3, 16), _x(16, 16), inner="inductor").counts() == {"gelu": 2}


def test_exported_program() -> None:
    from fusewheel.compiler import rewrite

    class Block(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return TANH["new"](x) + F.gelu(x, approximate="tanh")

    x = _x(256, 256, grad=False)
    program = torch.export.export(Block(), (x,))
    report = rewrite(program.graph_module)
    assert report.counts() == {"gelu": 2}, report
    torch.testing.assert_close(program.module()(x), Block()(x))
