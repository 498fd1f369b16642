"""Functions that resemble a pattern and are not: refused with a reason, numbers unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F

assert fusewheel
Tensor = torch.Tensor


def _norm(
    x: Tensor,
    w: Tensor,
    *,
    dim: Any = -1,
    eps: Any = 1e-6,
    power: Any = 2,
    times: Tensor | None = None,
) -> Tensor:
    factor = torch.rsqrt(x.pow(power).mean(dim, keepdim=True) + eps)
    return w * ((x if times is None else times) * factor)


NORMS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "other_dimension": (lambda x, w: _norm(x, w, dim=0), "last dimension"),
    "two_dimensions": (lambda x, w: _norm(x, w, dim=(-2, -1)), "last dimension"),
    "eps_is_a_tensor": (lambda x, w: _norm(x, w, eps=w.mean().abs()), "epsilon"),
    "eps_is_scaled": (
        lambda x, w: w * (x * torch.rsqrt(torch.add(x.pow(2).mean(-1, True), 1e-1, alpha=3))),
        "mean of squares plus epsilon",
    ),
    "no_eps": (lambda x, w: w * (x * x.pow(2).mean(-1, True).rsqrt()), "plus epsilon"),
    "cubes": (lambda x, w: _norm(x.abs(), w, power=3), "squares"),
    "two_factors": (
        lambda x, w: w * (x * torch.rsqrt((x * (x + 1)).abs().mean(-1, True) + 1e-6)),
        "squares",
    ),
    "sum": (lambda x, w: w * (x * torch.rsqrt(x.pow(2).sum(-1, True) + 1e-6)), "mean of squares"),
    "other_tensor": (lambda x, w: _norm(x, w, times=x + 1), "of another tensor"),
    "weight_per_row": (lambda x, w: _norm(x, torch.ones(4, 1) * 2), "weight"),
    "weight_is_scalar": (lambda x, w: _norm(x, w.sum()), "weight"),
    "weight_is_number": (lambda x, w: _norm(x, 2.0) * w, "weight"),  # type: ignore[arg-type]
    "no_keepdim": (
        lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(-1) + 1e-6)[:, None]),
        "keepdim",
    ),
    "weight_is_wider": (lambda x, w: _norm(x, w.double()), "the weight torch.float64"),
    "wide_statistics": (lambda x, w: _norm(x.double(), w), "the weight torch.float32"),
    "half_statistics": (lambda x, w: _norm(x.bfloat16(), w.bfloat16()), "torch.bfloat16"),
    "function_without_weight": (lambda x, w: F.rms_norm(x, (4,)) * w, "no weight"),
    "function_over_two": (
        lambda x, w: F.rms_norm(x, (4, 4), torch.ones(4, 4)),
        "more than the last dimension",
    ),
    "complex_chain": (lambda x, w: _norm(x, w).abs().add(1).rsqrt(), "rsqrt is not taken"),
}


@pytest.mark.parametrize("case", NORMS)
def test_norms(compare: Any, case: str) -> None:
    function, reason = NORMS[case]
    expected = {"rms_norm": 1} if case == "complex_chain" else {}
    check = compare if expected else compare.bits
    report = check(
        function, torch.randn(4, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    )
    assert report.counts() == expected, report
    assert any(reason in refusal.reason for refusal in report.refusals), report


GATES: dict[str, tuple[Callable[[Tensor, Tensor], Any], str | None]] = {
    "no_product": (lambda g, u: F.silu(g) + u, "not multiplied"),
    "constant": (lambda g, u: F.silu(g) * 2.0 + u, "not multiplied"),
    "broadcast": (lambda g, u: F.silu(g) * u[:1], "different shapes"),
    "other_dtype": (lambda g, u: F.silu(g) * u.double(), "torch.float64"),
    "integer": (lambda g, u: F.silu(g) * u.int(), "torch.int32"),
    "square": (lambda g, u: (lambda s: s * s)(F.silu(g)) + u, "not multiplied"),
    "glu": (lambda g, u: torch.sigmoid(g) * u, None),
    "glu_of_same": (lambda g, u: torch.sigmoid(g) * (g + u), None),
    "relu": (lambda g, u: F.relu(g) * u, None),
    "unused": (lambda g, u: (F.silu(g), u)[1] + 1, None),
}


@pytest.mark.parametrize("case", GATES)
def test_gates(compare: Any, case: str) -> None:
    function, reason = GATES[case]
    report = compare(
        function, torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    )
    assert report.counts() == {}, report
    if reason is not None:
        assert any(reason in refusal.reason for refusal in report.refusals), report


def _rope(
    half: int = 4,
    *,
    sign: int = 1,
    dim: int = -1,
    mix: Callable[[Tensor, Tensor], Tensor] = torch.add,
    other: Callable[[Tensor], Tensor] = lambda x: x,
    second_sin: float = 1.0,
) -> Callable[..., Any]:
    def rotate(x: Tensor) -> Tensor:
        low, high = x[..., :half], other(x)[..., half:]
        return torch.cat((-high, low) if sign > 0 else (high, -low), dim=dim)

    def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q_out = mix(q * cos, rotate(q) * sin)
        if second_sin != 1.0:
            sin = sin * second_sin
        return q_out, mix(k * cos, rotate(k) * sin)

    return apply


def _one(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    rotated = torch.cat((-q[..., 4:], q[..., :4]), -1)
    return q * cos.unsqueeze(1) + rotated * sin.unsqueeze(1) + k.mean()


def _chained(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    first = _one(q, k, cos, sin)
    return _one(first, k, cos, sin)


def _heads_third(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    rotated = [torch.cat((-x[..., 4:], x[..., :4]), -1) for x in (q, k)]
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    return q * cos + rotated[0] * sin, k * cos + rotated[1] * sin


ROPES: dict[str, tuple[Callable[..., Any], str | None]] = {
    "unequal_parts": (_rope(3), "two halves"),
    "other_direction": (_rope(sign=-1), None),
    "subtracted": (_rope(mix=torch.sub), "not part of"),
    "other_half": (_rope(other=lambda x: x + 1), "two halves"),
    "two_sines": (_rope(second_sin=2.0), "no second tensor"),
    "one_tensor": (_one, "no second tensor"),
    "one_after_another": (_chained, "no second tensor"),
    "heads_in_third_place": (_heads_third, "one angle per position"),
    "not_four_dimensions": (
        lambda q, k, c, s: _rope()(q[0], k[0], c[:1], s[:1]),
        "[batch, heads, sequence, features]",
    ),
    "scalar_angle": (
        lambda q, k, c, s: _rope()(q, k, c[:1, :1, :1], s[:1, :1, :1]),
        "one angle per position",
    ),
    "two_precisions": (lambda q, k, c, s: _rope()(q.half(), k.half(), c, s.half()), "dtypes"),
    "batch_of_tables": (lambda q, k, c, s: _rope()(q[:1], k[:1], c, s), "another shape"),
    "one_position": (
        lambda q, k, c, s: _rope()(q, k, c[:, :1], s[:, :1]),
        "one angle per position",
    ),
}


@pytest.mark.parametrize("case", ROPES)
def test_ropes(compare: Any, case: str) -> None:
    function, reason = ROPES[case]
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    table = torch.randn(2, 6, 8)
    report = compare(function, q.requires_grad_(), k.requires_grad_(), table.cos(), table.sin())
    assert report.counts() == {}, report
    if reason is not None:
        assert any(reason in refusal.reason for refusal in report.refusals), report
