"""Attention with a soft cap (Gemma 2) or sinks (gpt-oss), which models write out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiler.test_attention import (
    SCALE,
    added,
    causal,
    inputs,
    options,
    padding,
    positions,
    repeat,
    window,
)
from fusewheel.compiler.cost import attention as cost

Tensor = torch.Tensor
Attend = Callable[..., Tensor]
CAP = 2.0


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors are tiny."""
    monkeypatch.setattr(cost, "loss", lambda *sizes, **options: None)


def capped(q: Tensor, k: Tensor, v: Tensor, hide: Attend) -> Tensor:
    """As Gemma 2 writes it."""
    k, v = repeat(k, 2), repeat(v, 2)
    scores = torch.matmul(q, k.transpose(2, 3)) * SCALE
    scores = torch.tanh(scores / CAP) * CAP
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    weights = F.softmax(hide(scores, q, k), dim=-1, dtype=wide).to(q.dtype)
    weights = F.dropout(weights, p=0.0, training=True)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def sunk(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hide: Attend) -> Tensor:
    """As gpt-oss writes it."""
    k, v = repeat(k, 2), repeat(v, 2)
    scores = hide(torch.matmul(q, k.transpose(2, 3)) * SCALE, q, k)
    column = sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
    logits = torch.cat([scores, column], dim=-1)
    logits = logits - logits.max(dim=-1, keepdim=True).values
    weights = F.softmax(logits, dim=-1, dtype=logits.dtype)[..., :-1]
    weights = F.dropout(weights, p=0.0, training=True).to(v.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def merged(x: Tensor) -> Tensor:
    """As models go on with the result."""
    return x.transpose(1, 2).flatten(2) if x.shape[1] == 4 else x.flatten(2)


def few_heads(dtype: torch.dtype = torch.float32, grad: bool = True) -> list[Tensor]:
    return inputs(dtype, heads=2, grad=grad)


def logits(dtype: torch.dtype, grad: bool = True) -> Tensor:
    return torch.randn(4).to(dtype).requires_grad_(grad)


# How scores are hidden, and the window that the operator gets: none where it reads the mask.
MASKS: dict[str, tuple[Attend, tuple[int, int] | None]] = {
    "none": (lambda s, q, k: s, (-1, -1)),
    "causal": (lambda s, q, k: s + added(causal(q, k), q)[None, None], (-1, 0)),
    "window": (lambda s, q, k: s + added(window(q, k, 5, 0), q)[None, None], (5, 0)),
    "filled": (lambda s, q, k: s.masked_fill(~window(q, k, 5, 0), -math.inf), (5, 0)),
    "numbers": (lambda s, q, k: s + (positions(q, k)[0] % 5 - positions(q, k)[1] % 3).to(q), None),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", MASKS)
def test_soft_cap(compare: Any, name: str, dtype: torch.dtype) -> None:
    hide, bounds = MASKS[name]
    grad = bounds is not None  # a bias may hide all keys of a query
    report = compare(lambda q, k, v: capped(q, k, v, hide), *few_heads(dtype, grad), whole=grad)
    assert report.counts() == {"attention": 1}, report
    (found,) = options(compare)
    assert found == (bounds is None, *(bounds or (-1, -1)), pytest.approx(SCALE), CAP)
    assert torch.tanh not in compare.targets() and not report.refusals


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["none", "causal", "window", "filled"])
def test_sinks(compare: Any, name: str, dtype: torch.dtype) -> None:
    hide, bounds = MASKS[name]
    report = compare(
        lambda q, k, v, sinks: sunk(q, k, v, sinks, hide),
        *(*few_heads(dtype), logits(dtype)),
        whole=True,
    )
    assert report.counts() == {"attention": 1}, report
    assert options(compare) == [(False, *(bounds or ()), SCALE, 0.0)]
    assert torch.cat not in compare.targets() and not report.refusals


def test_repeated_keys_that_are_written(compare: Any) -> None:
    """The operator reads the keys before they are repeated, where the write does not show."""

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = repeat(k, 2), repeat(v, 2)
        k[:, 1].mul_(2)
        scores = torch.tanh(torch.matmul(q, k.transpose(2, 3)) * SCALE / CAP) * CAP
        return torch.matmul(F.softmax(scores, dim=-1), v)

    report = compare(f, *few_heads(grad=False))
    assert report.counts() == {}, report
    assert any("writes in place" in refusal.reason for refusal in report.refusals), report


def joined(q: Tensor, k: Tensor, column: Tensor) -> Tensor:
    return torch.cat([q @ k.mT, column.expand(2, 4, 24, 1)], -1)


FORMS: dict[str, Attend] = {
    "both": lambda q, k, v, sinks: sunk(
        q, k, v, sinks, lambda s, q, k: torch.tanh(s / CAP) * CAP + added(causal(q, k), q)
    ),
    "capped_at_1": lambda q, k, v, sinks: torch.softmax((q @ k.mT).tanh(), -1) @ v,
    "divided_later": lambda q, k, v, sinks: F.softmax((q @ k.mT / (4 * CAP)).tanh() * CAP, -1) @ v,
    "not_shifted": lambda q, k, v, sinks: (
        F.softmax(joined(q, k, sinks[None, :, None, None]), -1)[..., :-1] @ v
    ),
    "heads_of_one": lambda q, k, v, sinks: (
        torch.softmax(joined(q, k, sinks.view(4, 1, 1)), 3)[:, :, :, :-1] @ v
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_other_forms(compare: Any, name: str) -> None:
    args = few_heads() if name == "both" else inputs()
    report = compare(
        lambda q, k, v, sinks: merged(FORMS[name](q, k, v, sinks)) + sinks.sum(),
        *(*args, logits(torch.float32)),
        whole=True,
    )
    assert report.counts() == {"attention": 1}, report
    (found,) = options(compare)
    assert found[3:] == {
        "both": (pytest.approx(SCALE), CAP),
        "capped_at_1": (1.0, 1.0),
        "divided_later": (pytest.approx(0.25), CAP),
    }.get(name, (1.0, 0.0))


def _late(s: Tensor, q: Tensor, k: Tensor, value: float | None = None) -> Tensor:
    """The first queries of a sequence see no key."""
    return s + added(causal(q, k) & padding(k)[:, None, None], q, value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_queries_with_a_sink_alone(compare: Any, dtype: torch.dtype) -> None:
    """They are 0, in training too."""
    report = compare(
        lambda q, k, v, sinks: sunk(q, k, v, sinks, _late),
        *(*few_heads(dtype), logits(dtype)),
        inner="eager",
        whole=True,
    )
    assert report.counts() == {"attention": 1}, report
    assert options(compare) == [(True, -1, -1, SCALE, 0.0)]


def test_capped_queries_that_see_no_key(compare: Any) -> None:
    """NaN where the scores are -inf, the mean of all values where they are the least number."""
    for value in (-math.inf, None):

        def attend(q: Tensor, k: Tensor, v: Tensor, value: float | None = value) -> Tensor:
            return capped(q, k, v, lambda s, q, k: _late(s, q, k, value))

        compiled, recorder = compare.compile(attend, "eager")
        args = few_heads(grad=False)
        got, eager = compiled(*args), attend(*args)
        assert recorder.report().counts() == {"attention": 1}, recorder.report()
        assert bool(eager.isnan().any()) == (value is not None)
        torch.testing.assert_close(got, eager, equal_nan=True)


def _dropped(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    return F.dropout(F.softmax((q @ k.mT).tanh(), -1), 0.5) @ v


def _of_queries(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    return F.softmax(joined(q, k, q.mean(-1, keepdim=True)), -1)[..., :-1] @ v


def _with_values(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    weights = F.softmax(joined(q, k, sinks.view(1, 4, 1, 1)), -1)
    return weights @ torch.cat([v, v[:, :, :1]], 2)


KEPT: dict[str, tuple[Attend, str]] = {
    "dropout": (_dropped, "dropout is active"),
    "capped_twice": (
        lambda q, k, v, sinks: F.softmax((q @ k.mT).tanh().tanh(), -1) @ v,
        "capped twice",
    ),
    "capped_after_the_mask": (
        lambda q, k, v, sinks: F.softmax((q @ k.mT + added(causal(q, k), q)).tanh(), -1) @ v,
        "capped after they are masked",
    ),
    "sinks_of_queries": (_of_queries, "something else than one number for each head"),
    "sinks_with_values": (_with_values, "the weight of the sinks is not dropped"),
    "infinite_sinks": (
        lambda q, k, v, sinks: sunk(
            q, k[:, :2], v[:, :2], sinks, lambda s, q, k: _late(s, q, k, -math.inf)
        ),
        "with -inf",
    ),
    "trained_gradients": (
        lambda q, k, v, sinks: capped(q, k[:, :2], v[:, :2], _late),
        "other gradients",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(compare: Any, name: str) -> None:
    function, reason = KEPT[name]
    report = compare(function, *inputs(heads=4), logits(torch.float32), inner="eager")
    assert report.counts() == {}, report
    assert len(report.refusals) == 1 and reason in report.refusals[0].reason, report
    assert report.refusals[0].pattern == "attention"
