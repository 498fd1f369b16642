"""Layer norms as models write them, and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from oracle import assert_as_good_as_call

assert fusewheel
Tensor = torch.Tensor
OPERATOR = torch.ops.fusewheel.layer_norm.default


def _x(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_(grad)


def _inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return _x(4, 17, 120, dtype=dtype), _x(120, dtype=dtype), _x(120, dtype=dtype)


def _mean(x: Tensor) -> Tensor:
    return x.mean(-1, keepdim=True)


def _normalised(h: Tensor) -> Tensor:
    centred = h - _mean(h)
    return centred * torch.rsqrt(_mean(centred.pow(2)) + 1e-5)


# The last argument is the precision that a model asks for.
NORMS: dict[str, Callable[[Tensor, Tensor, Tensor, torch.dtype], Tensor]] = {
    "function": lambda x, w, b, wide: F.layer_norm(x, (120,), w, b, 1e-5),
    "function_by_name": lambda x, w, b, wide: torch.layer_norm(
        input=x, normalized_shape=[x.shape[-1]], bias=b, weight=w
    ),
    "aten": lambda x, w, b, wide: torch.ops.aten.layer_norm.default(x, [120], w, b, 1e-3),
    "no_bias": lambda x, w, b, wide: F.layer_norm(x, (120,), w) + b.sum(),
    "no_weight": lambda x, w, b, wide: F.layer_norm(x, (120,), None, b) * w.sum(),
    "olmo": lambda x, w, b, wide: (
        # The gradient of a sum would be a single number, whose error is chance.
        F.layer_norm(x.to(wide), (120,), None, None, eps=1e-5).to(x.dtype) * w.detach().sum()
        + b.detach().sum()
    ),
    "fairseq": lambda x, w, b, wide: F.layer_norm(
        x.to(wide), (120,), w.to(wide), b.to(wide)
    ).type_as(x),
    "float32": lambda x, w, b, wide: _normalised(x.to(wide)) * w + b,
    "rounded_once": lambda x, w, b, wide: (
        b.to(wide) + w.to(wide) * _normalised(x.to(wide)).to(wide)
    ).to(x.dtype),
    "rounded_before_weight": lambda x, w, b, wide: w * _normalised(x.to(wide)).to(x.dtype) + b,
    "function_then_weight": lambda x, w, b, wide: (
        F.layer_norm(x.to(wide), (120,)) * w.to(wide) + b.to(wide)
    ).to(x.dtype),
    "layer_scale": lambda x, w, b, wide: F.layer_norm(x, (120,), w, b) * w,
    "scale_without_bias": lambda x, w, b, wide: F.layer_norm(x, (120,), w) * b,
    "scaled_twice": lambda x, w, b, wide: _normalised(x.to(wide)) * w * b,
    "broadcast_weight": lambda x, w, b, wide: _normalised(x.to(wide)) * w[None, None] + b,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("norm", NORMS)
def test_as_good_as_eager(compare: Any, norm: str, dtype: torch.dtype) -> None:
    function, exact = (partial(NORMS[norm], wide=wide) for wide in (torch.float32, torch.float64))
    report = compare(function, *_inputs(dtype), exact=exact)
    assert report.counts() == {"layer_norm": 1}, report


@pytest.mark.parametrize("norm", NORMS)
def test_same_roundings(compare: Any, norm: str) -> None:
    """At most the odd last digit differs from eager: nothing is rounded at another place."""
    function, inputs = partial(NORMS[norm], wide=torch.float32), _inputs(torch.bfloat16)
    compiled, _ = compare.compile(function, "eager")
    actual, expected = compiled(*inputs).bfloat16(), function(*inputs).bfloat16()
    assert (actual == expected).float().mean() > 0.98


VARIANCES: dict[str, Callable[[Tensor], Tensor]] = {
    "squares": lambda x: _mean((x - _mean(x)) ** 2),
    "product": lambda x: (lambda c: _mean(c * c))(x.sub(_mean(x))),
    "square": lambda x: torch.mean(torch.subtract(x, _mean(x)).square(), (-1,), True),
    "var": lambda x: x.var(-1, keepdim=True, unbiased=False),
    "var_positional": lambda x: torch.var(x, [x.dim() - 1], False, True),
    "var_correction": lambda x: torch.var(x, dim=-1, correction=0, keepdim=True),
    "var_float_correction": lambda x: x.var(dim=(-1,), correction=0.0, keepdim=True),
    "aten": lambda x: torch.ops.aten.var.correction(x, [-1], correction=0, keepdim=True),
    "aten_dim": lambda x: torch.ops.aten.var.dim(x, [-1], False, True),
}
ROOTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "divided": lambda c, v: c / torch.sqrt(v + 1e-5),
    "rsqrt": lambda c, v: torch.rsqrt(1e-5 + v) * c,
    "power": lambda c, v: c * (v + 1e-5) ** -0.5,
    "reciprocal": lambda c, v: c * (1 / torch.sqrt(v + 1e-5)),
}


@pytest.mark.parametrize(
    ("variance", "root"), [*((v, "divided") for v in VARIANCES), *(("squares", r) for r in ROOTS)]
)
def test_spellings(compare: Any, variance: str, root: str) -> None:
    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return ROOTS[root](x - _mean(x), VARIANCES[variance](x)) * w + b

    report = compare(norm, *_inputs(), inner="eager")
    assert report.counts() == {"layer_norm": 1}, report
    assert not report.refusals


@pytest.mark.parametrize("weight", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("result", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("x", [torch.float32, torch.bfloat16], ids=str)
def test_mixed_dtypes(
    compare: Any, x: torch.dtype, weight: torch.dtype, result: torch.dtype
) -> None:
    """What is float32 around a norm stays outside of it."""

    def norm(x: Tensor, w: Tensor, b: Tensor, wide: torch.dtype = torch.float32) -> Tensor:
        scaled = _normalised(x.to(wide)) * w.to(wide) + b.to(wide)
        return scaled.to(torch.float64 if wide == torch.float64 else result)

    args = _x(4, 120, dtype=x), _x(120, dtype=weight), _x(120, dtype=weight)
    exact = partial(norm, wide=torch.float64)
    report = compare(norm, *args, inner="eager", exact=exact)
    assert report.counts() == {"layer_norm": 1}, report
    (call,) = [n for n in compare.graphs[0].graph.nodes if n.target is OPERATOR]
    narrow = x == weight == result == torch.bfloat16
    wanted = torch.bfloat16 if narrow else torch.float32
    assert [n.meta["example_value"].dtype for n in call.args[:3]] == [wanted] * 3


def test_float64(compare: Any) -> None:
    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(_normalised(x) * w + b, (120,), w, b)

    inputs = _inputs(torch.float64)
    assert compare(norm, *inputs).count() == 2


def test_modules_under_inductor(compare: Any) -> None:
    model = torch.nn.Sequential(
        torch.nn.LayerNorm(120), torch.nn.LayerNorm(120, bias=False),
        torch.nn.LayerNorm(120, elementwise_affine=False),
    )  # fmt: skip
    assert compare(model, _x(4, 120), inner="inductor").counts() == {"layer_norm": 3}


def test_dynamic_shapes(compare: Any) -> None:
    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(_normalised(x) * w + b, x.shape[-1:], w, b)

    compiled, recorder = compare.compile(norm, dynamic=True)
    for batch, length in ((2, 6), (3, 7), (2, 11)):
        args = _x(batch, length, 120), *_inputs()[1:]
        assert_as_good_as_call(compiled(*args), norm, *args)
    assert recorder.graphs == 1
    assert recorder.report().counts() == {"layer_norm": 2}, recorder.report()


@pytest.mark.parametrize("which", [(True, False), (False, True), (False, False)])
def test_requires_grad_is_kept(compare: Any, which: tuple[bool, bool]) -> None:
    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return _normalised(x) * w + b

    x, w, b = _inputs()
    args = x.requires_grad_(which[0]), w.requires_grad_(which[1]), b.requires_grad_(False)
    assert compare(norm, *args).counts() == {"layer_norm": 1}


def test_autocast(compare: Any) -> None:
    """What comes out of a linear layer is bfloat16 and the weights are float32."""

    def f(x: Tensor, w: Tensor, b: Tensor, m: Tensor) -> Tensor:
        y = F.layer_norm(x, (120,), w, b)
        return F.layer_norm(F.linear(y, m), (120,), w, b)

    with torch.autocast("cpu", torch.bfloat16):
        report = compare(f, *_inputs(), _x(120, 120))
    assert report.counts() == {"layer_norm": 1}, report
    assert "the input is torch.bfloat16, the weight is torch.float32" in report.refusals[0].reason


def test_float64_statistics_of_float32(compare: Any) -> None:
    """The operator computes float32 in float32, which is not what the model asks for."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        return _normalised(x.double()).float() * w

    report = compare(f, _x(4, 120), _x(120))
    assert report.counts() == {"layer_norm": 1}, report
    (call,) = [n for n in compare.graphs[0].graph.nodes if n.target is OPERATOR]
    assert call.args[0].meta["example_value"].dtype == torch.float64


def test_a_weight_that_is_none_stays_outside(compare: Any) -> None:
    """Modulation by a batch of weights, and a sum with something that has rows."""

    def f(x: Tensor, scale: Tensor, y: Tensor) -> Tensor:
        return F.layer_norm(x, (120,)) * (1 + scale[:, None]) + _normalised(x) + y

    inputs = _x(4, 17, 120), _x(4, 120), _x(4, 17, 120)
    report = compare(f, *inputs)
    assert report.counts() == {"layer_norm": 2}, report


def test_values_used_elsewhere(compare: Any) -> None:
    """The norm is replaced up to the value that somebody else reads."""

    def f(x: Tensor, w: Tensor, b: Tensor, wide: torch.dtype) -> tuple[Tensor, ...]:
        h = x.to(wide)
        y = _normalised(h)
        return y * w + b, y.abs(), h.abs()

    function, exact = (partial(f, wide=wide) for wide in (torch.float32, torch.float64))
    for dtype in (torch.float32, torch.bfloat16):
        compare.graphs.clear()
        report = compare(function, *_inputs(dtype), exact=exact)
        assert report.counts() == {"layer_norm": 1}, report


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "input": lambda x, c: x.add_(1),
    "interior": lambda x, c: c.mul_(2),
    "view": lambda x, c: x[1:].zero_(),
}


@pytest.mark.parametrize("write", WRITES)
def test_written_inside(compare: Any, write: str) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            x = x * 1.0
            centred = x - _mean(x)
            variance = _mean(centred**2)
            WRITES[write](x, centred)
            return centred / torch.sqrt(variance + 1e-5) * w + x

    report = compare(f, _x(4, 8), _x(8), inner="eager")
    assert report.count("layer_norm") == 0, report
    assert any("writes in place" in refusal.reason for refusal in report.refusals), report


@pytest.mark.parametrize("written", (False, True))
def test_casts_of_one_input(compare: Any, written: bool) -> None:
    """The operator reads what both are casts of, unless one of them is written."""

    def f(x: Tensor, w: Tensor, b: Tensor, wide: torch.dtype = torch.float32) -> Tensor:
        first, second = x.to(wide), x.to(wide)
        if written:
            first[..., 0].add_(9)
        root = torch.sqrt(second.var(-1, unbiased=False, keepdim=True) + 1e-5)
        return ((first - _mean(second)) / root * w.to(wide) + b.to(wide)).to(x.dtype)

    inputs = [_x(*shape, dtype=torch.bfloat16, grad=False) for shape in ((4, 120), (120,), (120,))]
    exact = partial(f, wide=torch.float64)
    report = compare(f, *inputs, inner="eager", exact=exact)
    assert report.counts() == ({} if written else {"layer_norm": 1}), report
    assert not written or "writes in place" in report.refusals[0].reason


def test_written_later(compare: Any) -> None:
    """Eager keeps the float32 copy of x for backward; the operator would keep x."""

    def f(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        x = x * 1.0
        y = NORMS["fairseq"](x, w, b, torch.float32)
        x.add_(1)
        return y * x

    report = compare(f, *_inputs(torch.bfloat16), inner="eager")
    assert report.counts() == {}, report
    assert "backward" in report.refusals[0].reason
