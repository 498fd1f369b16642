"""Calls of PyTorch's attention that become the operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler.cost import attention as cost
from torch.utils.checkpoint import checkpoint

Tensor = torch.Tensor
LENGTH, SIZE = 24, 16
SCALE = SIZE**-0.5
OPERATOR = torch.ops.fusewheel.attention.default


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors are tiny; tests/compiler/test_attention_cost.py tries what pays."""
    monkeypatch.setattr(cost, "loss", lambda *sizes, **options: None)


def inputs(
    dtype: torch.dtype = torch.float32,
    queries: int = LENGTH,
    keys: int = LENGTH,
    heads: int = 4,
    grad: bool = True,
    batch: int = 2,
) -> list[Tensor]:
    """Query with 4 heads, key and value, heads inside of positions as in models."""
    shapes = (batch, queries, 4, SIZE), (batch, keys, heads, SIZE), (batch, keys, heads, SIZE)
    found = (torch.randn(shape).to(dtype).transpose(1, 2) for shape in shapes)
    return [x.detach().requires_grad_(grad) for x in found]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
    """A call of PyTorch's attention, after which the model goes on."""
    return F.scaled_dot_product_attention(q, k, v, mask, **options).transpose(1, 2).flatten(2)


def positions(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])


def causal(q: Tensor, k: Tensor, offset: int = 0) -> Tensor:
    query, key = positions(q, k)
    return key <= query + offset


def window(q: Tensor, k: Tensor, before: int, after: int) -> Tensor:
    query, key = positions(q, k)
    return (key >= query - before) & (key <= query + after)


def added(seen: Tensor, q: Tensor, value: float | None = None) -> Tensor:
    least = torch.finfo(torch.float32 if q.dtype == torch.float64 else q.dtype).min
    return torch.where(seen, 0.0, least if value is None else value).to(q.dtype)


def padding(k: Tensor) -> Tensor:
    """The first sequence begins late, the second ends early, and so on in turns."""
    place = torch.arange(k.shape[2])
    return torch.stack((place >= 5, place < 9)).repeat(k.shape[0] // 2, 1)


def repeat(x: Tensor, groups: int) -> Tensor:
    """As models do it."""
    batch, heads, length, size = x.shape
    wide = x[:, :, None, :, :].expand(batch, heads, groups, length, size)
    return wide.reshape(batch, heads * groups, length, size)


def _checkpointed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    result: Tensor = checkpoint(attend, q, k, v, causal(q, k), use_reentrant=False)
    return result


def options(compare: Any) -> list[tuple[bool, int, int, float, float]]:
    """Of every call of the operator: whether it reads a mask, and the numbers that it is given."""
    graphs = list(compare.graphs)
    for gm in graphs:
        graphs += [m for m in gm.children() if isinstance(m, torch.fx.GraphModule)]
    calls = [n for gm in graphs for n in gm.graph.nodes if n.target is OPERATOR]
    return [(call.args[4] is not None, *call.args[5:]) for call in calls]


ALL, CAUSAL = (-1, -1), (-1, 0)
Attend = Callable[..., Tensor]
# The function, the window that the operator gets, and whether it reads the mask too.
CALLS: dict[str, tuple[Attend, tuple[int, int], bool]] = {
    "no_mask": (attend, ALL, False),
    "is_causal": (lambda q, k, v: attend(q, k, v, is_causal=True), CAUSAL, False),
    "causal": (lambda q, k, v: attend(q, k, v, causal(q, k)), CAUSAL, False),
    "a_later_key": (lambda q, k, v: attend(q, k, v, causal(q, k, 2)), (-1, 2), False),
    "window": (lambda q, k, v: attend(q, k, v, window(q, k, 5, 0)), (5, 0), False),
    "both_sides": (lambda q, k, v: attend(q, k, v, window(q, k, 3, 4)), (3, 4), False),
    "added": (lambda q, k, v: attend(q, k, v, added(causal(q, k), q)), CAUSAL, False),
    "added_infinity": (
        lambda q, k, v: attend(q, k, v, added(window(q, k, 5, 0), q, -math.inf)),
        (5, 0),
        False,
    ),
    "padding": (
        lambda q, k, v: attend(q, k, v, causal(q, k) & padding(k)[:, None, None]),
        CAUSAL,
        True,
    ),
    "padding_alone": (lambda q, k, v: attend(q, k, v, padding(k)[:, None, None]), ALL, True),
    "padding_and_window": (
        lambda q, k, v: attend(q, k, v, window(q, k, 30, 3) & padding(k)[:, None, None]),
        (30, 3),
        True,
    ),
    "added_padding": (
        lambda q, k, v: attend(q, k, v, added(padding(k)[:, None, None], q, -math.inf)),
        ALL,
        True,
    ),
    "any_mask": (
        lambda q, k, v: attend(q, k, v, (positions(q, k)[0] * 7 + positions(q, k)[1]) % 3 > 0),
        ALL,
        True,
    ),
    "scale": (lambda q, k, v: attend(q, k, v, is_causal=True, scale=0.4), CAUSAL, False),
    "groups": (
        lambda q, k, v: attend(q, k[:, :2], v[:, :2], causal(q, k), enable_gqa=True),
        CAUSAL,
        False,
    ),
    "repeated": (
        lambda q, k, v: attend(q, repeat(k[:, :2], 2), repeat(v[:, :2], 2), is_causal=True),
        CAUSAL,
        False,
    ),
    "smaller_values": (lambda q, k, v: attend(q, k, v[..., :5], is_causal=True), CAUSAL, False),
    "checkpoint": (_checkpointed, CAUSAL, False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", CALLS)
def test_calls(compare: Any, name: str, dtype: torch.dtype) -> None:
    function, bounds, masked = CALLS[name]
    report = compare(function, *inputs(dtype), whole=True)
    assert report.counts() == {"attention": 1}, report
    assert not report.refusals and not report.attentions
    scale = 0.4 if name == "scale" else SCALE
    assert options(compare) == [(masked, *bounds, scale, 0.0)]


def test_nothing_is_repeated(compare: Any) -> None:
    """Keys and values of groups are read as they are, in training too."""
    compare(CALLS["repeated"][0], *inputs())
    (call,) = [n for n in compare.graphs[0].graph.nodes if n.target is OPERATOR]
    assert [n.meta["example_value"].shape[1] for n in call.args[:3]] == [4, 2, 2]


SHIFTED = {
    # queries, keys, the mask, and the window: it is counted from the last query and key
    "queries_first": (9, 5, causal, (-1, 4)),
    "keys_first": (5, 9, lambda q, k: causal(q, k, 4), CAUSAL),
    "window": (5, 9, lambda q, k: window(q, k, 1, 6), (5, 2)),
}


@pytest.mark.parametrize("name", SHIFTED)
def test_other_numbers_of_keys(compare: Any, name: str) -> None:
    queries, keys, mask, bounds = SHIFTED[name]
    report = compare(
        lambda q, k, v: attend(q, k, v, mask(q, k)),
        *inputs(queries=queries, keys=keys),
        inner="eager",
        whole=True,
    )
    assert report.counts() == {"attention": 1}, report
    assert options(compare) == [(False, *bounds, SCALE, 0.0)]


HIDDEN: dict[str, tuple[int, Callable[[Tensor, Tensor], Tensor]]] = {
    # 12 queries and 6 keys: the last queries are behind all of them
    "window": (6, lambda q, k: window(q, k, 2, 0)),
    "boolean": (12, lambda q, k: causal(q, k) & (positions(q, k)[0] != 4)),
    "padding": (12, lambda q, k: causal(q, k) & padding(k)[:, None, None]),
    "infinity": (12, lambda q, k: added(causal(q, k) & padding(k)[:, None, None], q, -math.inf)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", HIDDEN)
def test_queries_that_see_no_key(compare: Any, name: str, dtype: torch.dtype) -> None:
    """They are 0 and have no gradients, as in PyTorch's attention."""
    keys, mask = HIDDEN[name]
    # Of few elements the largest error is a matter of chance.
    args = inputs(dtype, queries=12, keys=keys, batch=16)
    compiled, recorder = compare.compile(lambda q, k, v: attend(q, k, v, mask(q, k)), "eager")
    compiled(*args)
    assert recorder.report().counts() == {"attention": 1}, recorder.report()
    seen = mask(*args[:2])
    seen = (seen if seen.dtype == torch.bool else seen == 0).expand(16, 1, -1, -1)
    none = ~seen.any(-1)[:, 0]
    assert none.any() and not none.all()
    report = compare(lambda q, k, v: attend(q, k, v, mask(q, k)), *args, inner="eager", whole=True)
    assert report.counts() == {"attention": 1}
    result = compiled(*args)
    (grad,) = torch.autograd.grad(result.square().sum(), args[:1])
    assert not result[none].any() and not grad.transpose(1, 2)[none].any()
    assert result[~none].any(-1).all() and grad.isfinite().all()


def test_least_number_without_a_key(compare: Any) -> None:
    """Such a query is the mean of all values, in training its gradients differ."""

    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, added(causal(q, k) & padding(k)[:, None, None], q))

    report = compare(masked, *inputs(grad=False), inner="eager")
    assert report.counts() == {"attention": 1}
    assert options(compare) == [(True, *ALL, SCALE, 0.0)]
    kept(compare, masked, inputs(), "the mask may hide all keys of a query with a finite number")


def kept(compare: Any, function: Attend, args: list[Any], reason: str) -> None:
    """It stays PyTorch's, and the report says why."""
    report = compare(function, *args, inner="eager")
    assert report.count("attention") == 0, report
    reasons = [refusal.reason for refusal in report.refusals if refusal.pattern == "attention"]
    assert len(reasons) == 1 and reason in reasons[0], report


def _trained(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, (q @ k.mT).mean(1, keepdim=True))


KEPT: dict[str, tuple[Attend, dict[str, Any], str]] = {
    "dropout": (lambda q, k, v: attend(q, k, v, dropout_p=0.5), {}, "dropout may be active"),
    "float64": (attend, {"dtype": torch.float64}, "float64 is left to PyTorch's attention"),
    "trained_mask": (_trained, {}, "the mask requires a gradient"),
    "more_keys": (
        lambda q, k, v: attend(q, k, v, is_causal=True),
        {"queries": 5},
        "there may be more keys than queries",
    ),
    "one_head_for_all": (
        lambda q, k, v: attend(q, k[:, :1], v[:, :1]),
        {},
        "query, key and value are broadcast",
    ),
    "three_dimensions": (
        lambda q, k, v: F.scaled_dot_product_attention(q[0], k[0], v[0]) * 2,
        {},
        "are not [batch, heads, length, features]",
    ),
    "wide_mask": (
        lambda q, k, v: attend(q, k, v, torch.randn(LENGTH, LENGTH)),
        {"dtype": torch.bfloat16, "grad": False},
        "the mask is torch.float32, the query is torch.bfloat16",
    ),
    "unknown_numbers": (
        lambda q, k, v: attend(q, k, v, torch.rand(LENGTH, LENGTH).sub(0.5)),
        {},
        "the mask may hide all keys of a query with a finite number",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(compare: Any, name: str) -> None:
    function, settings, reason = KEPT[name]
    kept(compare, function, inputs(**settings), reason)


def test_a_bias(compare: Any) -> None:
    """Any numbers, where nothing is differentiated."""
    mask = torch.randn(1, 4, LENGTH, LENGTH)
    mask[..., 3:5, 7:] = -math.inf
    report = compare(attend, *inputs(grad=False), mask, inner="eager")
    assert report.counts() == {"attention": 1}
    assert options(compare) == [(True, *ALL, SCALE, 0.0)]


def test_autocast(compare: Any) -> None:
    """What the call computes in is the same."""

    def lowered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return attend(q, k, v.bfloat16(), causal(q, k))

    def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, causal(q, k))

    report = compare(lowered, *inputs(), inner="eager", exact=exact)
    assert report.counts() == {"attention": 1}, report


def test_a_result_that_is_written(compare: Any) -> None:
    """The backward needs the result."""

    def doubled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = F.softmax(torch.tanh(q @ k.mT), -1)
        return (weights @ v).mul_(2)

    report = compare(doubled, *inputs(), inner="eager")
    assert report.counts() == {} and "writes in place" in report.refusals[0].reason


@pytest.mark.parametrize("name", ["is_causal", "window"])
def test_any_length(compare: Any, name: str) -> None:
    compiled, recorder = compare.compile(CALLS[name][0], "eager", dynamic=True)
    for length in (5, 9, 24):
        tensors = inputs(queries=length, keys=length)
        torch.testing.assert_close(compiled(*tensors), CALLS[name][0](*tensors))
    assert recorder.graphs == 1
    assert recorder.report().counts() == {"attention": 1}, recorder.report()


def test_without_a_code_generator(compare: Any) -> None:
    """Nothing of the mask is computed."""
    report = compare(CALLS["window"][0], *inputs(), inner="none", whole=True)
    assert report.counts() == {"attention": 1}
    assert torch.arange not in compare.targets()


def test_explain() -> None:
    def both(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        once = attend(q, k, v, is_causal=True)
        return once + attend(q.double(), k.double(), v.double()).float()

    report = fusewheel.explain(both, *inputs())
    (replacement,), (refusal,) = report.replacements, report.refusals
    assert (replacement.pattern, replacement.operator) == ("attention", "fusewheel::attention")
    assert refusal.reason == "torch.float64 is left to PyTorch's attention"
    shapes = "query 2 x 4 x 24 x 16, keys 24"
    assert [(call.mask, call.shapes) for call in report.attentions] == [("none", shapes)]
