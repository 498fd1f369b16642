"""Residual additions in front of an RMSNorm, and what must keep them apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from nightly import NIGHTLY
from oracle import assert_as_good_as_call

assert fusewheel
Tensor = torch.Tensor
OPERATOR = torch.ops.fusewheel.add_rms_norm.default


def _x(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_(grad)


def _inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return _x(4, 17, 120, dtype=dtype), _x(4, 17, 120, dtype=dtype), _x(120, dtype=dtype)


def _normalised(h: Tensor) -> Tensor:
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)


def _llama(h: Tensor, w: Tensor, wide: torch.dtype = torch.float32) -> Tensor:
    full = h.clone() if h.dtype == torch.float64 else h.to(wide)  # eager keeps it, not h
    return w * _normalised(full).to(h.dtype)


# The last argument is the precision that a model asks for.
NORMS: dict[str, tuple[Callable[[Tensor, Tensor, torch.dtype], Tensor], int]] = {
    "llama": (_llama, 0),
    "gemma": (lambda h, w, wide: (_normalised(h.to(wide)) * (1 + w.to(wide))).type_as(h), 1),
    "olmo": (lambda h, w, wide: (w * _normalised(h.to(wide))).to(h.dtype), 2),
    "function": (lambda h, w, wide: F.rms_norm(h, (120,), w, 1e-5), 2),
}
ADDITIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "operator": lambda x, r: x + r,
    "method": lambda x, r: x.add(r),
    "function": lambda x, r: torch.add(r, other=x),
    "aten": lambda x, r: torch.ops.aten.add.Tensor(x, r),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("norm", NORMS)
def test_as_good_as_eager(compare: Any, norm: str, dtype: torch.dtype) -> None:
    rule, cast = NORMS[norm]

    def block(x: Tensor, r: Tensor, w: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
        h = x + r
        return rule(h, w, wide) * 3, h * 2

    function, exact = (partial(block, wide=wide) for wide in (torch.float32, torch.float64))
    inputs = _inputs(dtype)
    report = compare(function, *inputs, exact=exact)
    assert report.counts() == {"add_rms_norm": 1}, report
    assert not report.refusals
    (call,) = [n for n in compare.graphs[0].graph.nodes if n.target is OPERATOR]
    assert dtype == torch.float32 or call.args[3:] == (1e-5, cast)
    compiled, _ = compare.compile(function, "eager")
    (y, h), (eager_y, eager_h) = compiled(*inputs), function(*inputs)
    assert torch.equal(h, eager_h)
    assert (y.bfloat16() == eager_y.bfloat16()).float().mean() > 0.98


@pytest.mark.parametrize("addition", ADDITIONS)
def test_additions(compare: Any, addition: str) -> None:
    def block(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = ADDITIONS[addition](x, r)
        return _llama(h, w), h

    report = compare(block, *_inputs())
    assert report.counts() == {"add_rms_norm": 1}, report


USES: dict[str, tuple[Callable[..., Any], dict[str, int]]] = {
    "sum_is_not_used": (lambda x, r, w, norm: norm(x + r, w), {"add_rms_norm": 1}),
    "sum_is_used_before": (
        lambda x, r, w, norm: (lambda h: (h.sin(), norm(h, w)))(x + r),
        {"add_rms_norm": 1},
    ),
    "sum_of_a_tensor_with_itself": (lambda x, r, w, norm: norm(x + x, w) + r, {"add_rms_norm": 1}),
    "two_norms_of_one_sum": (
        lambda x, r, w, norm: (lambda h: norm(h, w) * F.rms_norm(h, (120,), w, 1e-3))(x + r),
        {"add_rms_norm": 1, "rms_norm": 1},
    ),
    "one_after_another": (
        lambda x, r, w, norm: (lambda h: (lambda g: (g, norm(g, w)))(norm(h, w) + h))(x + r),
        {"add_rms_norm": 2},
    ),
    "added_norms": (
        lambda x, r, w, norm: norm(norm(x, w) + norm(r, w), w),
        {"rms_norm": 2, "add_rms_norm": 1},
    ),
    "sum_is_an_input_of_the_weight": (
        lambda x, r, w, norm: (lambda h: norm(h, w * h.mean()))(x + r),
        {"rms_norm": 1},
    ),
    "weight_is_computed_between": (
        lambda x, r, w, norm: (lambda h: F.rms_norm(h, (120,), w * 2, 1e-5))(x + r),
        {"add_rms_norm": 1},
    ),
}


@pytest.mark.parametrize("use", USES)
def test_uses(compare: Any, use: str) -> None:
    block, counts = USES[use]
    function, exact = (
        partial(block, norm=partial(_llama, wide=wide)) for wide in (torch.float32, torch.float64)
    )
    report = compare(function, *_inputs(), exact=exact)
    assert report.counts() == counts, report


def test_cast_of_the_sum_is_used(compare: Any) -> None:
    """The operator reads the sum before the cast; who reads the cast keeps it."""

    def block(x: Tensor, r: Tensor, w: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
        h = x + r
        full = h.to(wide)
        return w * _normalised(full).to(h.dtype), full.abs()

    function, exact = (partial(block, wide=wide) for wide in (torch.float32, torch.float64))
    inputs = _inputs(torch.bfloat16)
    report = compare(function, *inputs, exact=exact)
    assert report.counts() == {"add_rms_norm": 1}, report


def _half(r: Tensor) -> Tensor:
    """Rounded to bfloat16; in float64 the gradient is not rounded, so that it is exact."""
    rounded = r.bfloat16()
    return rounded if r.dtype == torch.float32 else r + (rounded - r).detach()


APART: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], str]] = {
    "broadcast": (lambda x, r, w: _llama(x + r[:1], w), "is added to one of (4, 17, 120)"),
    "broadcast_vector": (lambda x, r, w: _llama(x + r[0, 0], w), "is added to one of (4, 17, 120)"),
    # Its gradient would be a single number, whose error is chance.
    "tensor_without_dimensions": (
        lambda x, r, w: _llama(x + r.detach().mean(), w), "is added to one of",
    ),
    "half": (lambda x, r, w: _llama(x + _half(r), w), "torch.bfloat16 is added to"),
    "integer": (lambda x, r, w: _llama(x + r.int(), w), "torch.int32 is added to"),
    "number": (lambda x, r, w: _llama(x + 1.0, w) + r, ""),
    "scaled": (lambda x, r, w: _llama(torch.add(x, r, alpha=2), w), ""),
    "difference": (lambda x, r, w: _llama(x - r, w), ""),
    "in_place": (lambda x, r, w: _llama((x * 1).add_(r), w), ""),
    "in_place_operator": (lambda x, r, w: _llama((x * 1).__iadd__(r), w), ""),
    "other_view": (lambda x, r, w: _llama((x + r).transpose(0, 1), w), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_kept_apart(compare: Any, case: str) -> None:
    """The norm alone is replaced."""
    function, reason = APART[case]
    report = compare(function, *_inputs(), inner="eager")
    assert report.counts() == ({"rms_norm": 1} if case != "other_view" else {}), report
    reasons = [refusal.reason for refusal in report.refusals if refusal.pattern == "add_rms_norm"]
    assert not reason or any(reason in given for given in reasons), report


def test_refused_norms_are_reported_once(compare: Any) -> None:
    def block(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        return _llama(x + r, w.sum())

    report = compare(block, *_inputs())
    assert report.counts() == {}
    assert [(r.pattern, r.count) for r in report.refusals] == [("rms_norm", 1)]


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "method": lambda h: h.add_(1),
    "view": lambda h: h[1:].mul_(2),
    "item": lambda h: h.__setitem__(0, 3.0),
    "flag": lambda h: F.relu(h, inplace=True),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_sum_written_later(compare: Any, write: str, inner: str) -> None:
    """Eager keeps the float32 copy of the sum for backward; the operator would keep the sum."""

    def block(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + r
        y = _llama(h, w)
        WRITES[write](h)
        return y, h

    inputs = _inputs(torch.bfloat16)
    report = compare(block, *inputs, inner=inner)
    assert report.counts() == {}, report
    assert {refusal.pattern for refusal in report.refusals} == {"add_rms_norm", "rms_norm"}
    assert all("what backward needs" in refusal.reason for refusal in report.refusals)
    with torch.no_grad():
        report = compare(block, *inputs, inner=inner)
    assert report.counts() == {"add_rms_norm": 1}, report


@pytest.mark.parametrize("write", WRITES)
def test_sum_written_between(compare: Any, write: str) -> None:
    def block(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + r
        WRITES[write](h)
        return _llama(h, w), h

    with torch.no_grad():
        report = compare(block, *_inputs(), inner="eager")
    assert report.counts() in ({"rms_norm": 1}, {}), report
    assert "writes in place" in report.refusals[0].reason


@pytest.mark.parametrize("which", [0, 1])
def test_addend_written_between(compare: Any, which: int) -> None:
    def block(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        both = x * 1, r * 1
        h = both[0] + both[1]
        both[which].add_(1)
        return _llama(h, w) + both[which], h

    with torch.no_grad():
        report = compare(block, *_inputs(), inner="eager")
    assert report.counts() == {"rms_norm": 1}, report
    assert "writes in place" in report.refusals[0].reason


def test_norm_without_gradient_of_the_sum(compare: Any) -> None:
    """Only the weight is trained: the operator makes the sum require one too; it is detached."""

    def block(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + r
        return _llama(h, w), h

    x, r, w = _inputs()
    report = compare(block, x.detach(), r.detach(), w)
    assert report.counts() == {"add_rms_norm": 1}, report
    assert compare(block, x.detach(), r, w.detach()).counts() == {"add_rms_norm": 1}


def test_layout_of_the_sum(compare: Any) -> None:
    """A sum of transposed tensors is transposed in eager and would not be here."""

    def block(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x.transpose(0, 1) + r.transpose(0, 1)
        return _llama(h, w).sum(), h

    compiled, recorder = compare.compile(block, "eager")
    inputs = _inputs()
    assert compiled(*inputs)[1].stride() == block(*inputs)[1].stride()
    (refusal,) = recorder.report().refusals
    assert (refusal.pattern, refusal.reason) == (
        "add_rms_norm",
        "the layout of an output would differ",
    )


def test_mode_changes_between(compare: Any) -> None:
    def block(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            h = x + r
        return _llama(h, w)

    report = compare(block, *_inputs())
    assert report.counts() == {"rms_norm": 1}, report
    assert "mode" in report.refusals[0].reason


def test_autocast(compare: Any) -> None:
    """The stream of residuals is float32, what a linear layer adds to it is bfloat16."""

    def block(x: Tensor, r: Tensor, w: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        h = x + F.linear(r, m)
        return _llama(h, w), h

    with torch.autocast("cpu", torch.bfloat16):
        report = compare(block, *_inputs(), _x(120, 120))
    assert report.counts() == {"rms_norm": 1}, report
    assert report.refusals[0].reason == "torch.bfloat16 is added to torch.float32"


@NIGHTLY
def test_dynamic_shapes_and_inductor(compare: Any) -> None:
    def block(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + r
        return F.rms_norm(_llama(h, w) + h, x.shape[-1:], w, 1e-5), h

    compiled, recorder = compare.compile(block, "inductor", dynamic=True)
    for batch, length in ((2, 6), (3, 7), (1, 11)):
        args = _x(batch, length, 120), _x(batch, length, 120), _x(120)
        assert_as_good_as_call(compiled(*args), block, *args)
    assert recorder.report().counts()["add_rms_norm"] == 2 * recorder.graphs
