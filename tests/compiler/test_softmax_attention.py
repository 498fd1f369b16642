"""Attention written by hand, and what must not be taken for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracle import assert_as_good_as_call

pytestmark = pytest.mark.usefixtures("calls_stay")
Tensor = torch.Tensor
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
LENGTH, SIZE = 24, 16
SCALE = 1 / math.sqrt(SIZE)


def inputs(dtype: torch.dtype = torch.float32, grad: bool = True) -> list[Tensor]:
    """Query, key and value, ``[2, 3, LENGTH, SIZE]``, the key not contiguous."""
    generator = torch.Generator().manual_seed(5)
    found = [torch.randn(2, 3, LENGTH, SIZE, generator=generator) for _ in range(3)]
    found[1] = found[1].transpose(1, 2).contiguous().transpose(1, 2)
    return [x.to(dtype).requires_grad_(grad) for x in found]


def merged(x: Tensor) -> Tensor:
    """As models go on with the result."""
    return x.transpose(1, 2).flatten(2)


def causal() -> Tensor:
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _softmax_wide(s: Tensor) -> Tensor:
    wide = torch.float64 if s.dtype == torch.float64 else torch.float32
    return F.softmax(s, dim=-1, dtype=wide).to(s.dtype)


def _min_mask(q: Tensor) -> Tensor:
    """As Hugging Face builds it."""
    least = torch.finfo(q.dtype if q.dtype != torch.float64 else torch.float32).min
    return torch.where(causal(), torch.zeros((), dtype=q.dtype), least)[None, None]


def _bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    weights = torch.bmm(q, k.transpose(1, 2)).mul(SCALE).softmax(-1)
    return torch.bmm(weights, v).view(2, 3, LENGTH, SIZE)


def _einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = torch.einsum("bhqd,bhkd->bhqk", q, k) * SCALE
    return torch.einsum("bhqk,bhkd->bhqd", s.softmax(-1), v)


def _einsum_keys_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = torch.einsum("bhkd,bhqd->bhqk", k, q) * SCALE
    return torch.einsum("bhqk,bhkd->bhqd", s.softmax(-1), v)


def _einsum_heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(SIZE)
    return torch.einsum("bhqk,bkhd->bqhd", torch.softmax(s, -1), v).transpose(1, 2)


FORMS: dict[str, Attend] = {
    "plain": lambda q, k, v: F.softmax(q @ k.mT * SCALE, -1) @ v,
    "divided": lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / SIZE**0.5, dim=3) @ v,
    "unscaled": lambda q, k, v: torch.matmul((q @ k.mT).softmax(-1), v),
    "query_scaled": lambda q, k, v: F.softmax((q * SCALE) @ k.permute(0, 1, 3, 2), -1) @ v,
    "scaled_twice": lambda q, k, v: F.softmax((q @ k.mT) * 0.5 / 2, -1) @ v,
    "key_transposed_before": lambda q, k, v: F.softmax(q @ (k.mT * 1.5) * SCALE, -1) @ v,
    "softmax_in_float32": lambda q, k, v: _softmax_wide(q @ k.mT * SCALE) @ v,
    "scores_in_float32": lambda q, k, v: _wide(q @ k.mT * SCALE).softmax(-1).type_as(q) @ v,
    "dropout_of_nothing": lambda q, k, v: F.dropout(F.softmax(q @ k.mT, -1), p=0.0) @ v,
    "dropout_in_eval": lambda q, k, v: torch.dropout(F.softmax(q @ k.mT, -1), 0.5, False) @ v,
    "bmm": _bmm,
    "einsum": _einsum,
    "einsum_keys_first": _einsum_keys_first,
    "einsum_heads_last": _einsum_heads_last,
    "added": lambda q, k, v: _softmax_wide(q @ k.mT * SCALE + _min_mask(q)) @ v,
    "filled": lambda q, k, v: (
        F.softmax((q @ k.mT * SCALE).masked_fill(~causal(), -math.inf), -1) @ v
    ),
    "filled_with_least": lambda q, k, v: (
        F.softmax((q @ k.mT).masked_fill(causal() == 0, torch.finfo(torch.bfloat16).min), -1) @ v
        if q.dtype == torch.bfloat16
        else F.softmax((q @ k.mT).masked_fill(~causal(), torch.finfo(torch.float32).min), -1) @ v
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", FORMS)
def test_as_good_as_eager(compare: Any, name: str, dtype: torch.dtype) -> None:
    form = FORMS[name]
    report = compare(lambda *args: merged(form(*args)), *inputs(dtype), whole=True)
    causal = {"causal_attention": 1} if name in ("added", "filled", "filled_with_least") else {}
    assert report.counts() == {"softmax_attention": 1} | causal, report
    assert not report.refusals
    assert torch.softmax not in compare.targets() and F.softmax not in compare.targets()


def test_one_head(compare: Any) -> None:
    """Three dimensions."""

    def head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = (q @ k.transpose(-2, -1) * SCALE).masked_fill(~causal(), -math.inf)
        return F.softmax(s, dim=-1) @ v

    x = [t.detach().flatten(0, 1).requires_grad_() for t in inputs()]
    assert compare(head, *x, whole=True).counts() == {
        "softmax_attention": 1,
        "causal_attention": 1,
    }


def test_grouped_queries(compare: Any) -> None:
    """The copies of keys and values for each query head go as well."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x[:, :, None].expand(2, 3, 2, LENGTH, SIZE).reshape(2, 6, -1, SIZE) for x in (k, v))
        return merged(F.softmax(q @ k.mT * SCALE, -1) @ v)

    q, k, v = inputs(grad=False)
    report = compare(attend, torch.cat((q, q + 1), 1), k, v)
    assert report.counts() == {"softmax_attention": 1, "grouped_attention": 1}, report


def _dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout(F.softmax(q @ k.mT, -1), 0.25) @ v


def _scores_used(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT
    return F.softmax(s, -1) @ v + s.mean()


def _weights_used(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = F.softmax(q @ k.mT, -1)
    return weights @ v, weights


KEPT: dict[str, tuple[Callable[..., Any], str]] = {
    "dropout": (_dropped, "dropout is active"),
    "weights_used": (_weights_used, "is used 2 times, not once"),
    "scores_used": (_scores_used, "is also used by mean"),
    "sine": (lambda q, k, v: F.softmax(torch.sin(q @ k.mT), -1) @ v, ""),
    "masked_first": (
        lambda q, k, v: F.softmax((q @ k.mT + _min_mask(q)) * SCALE, -1) @ v,
        "scaled after they are masked",
    ),
    "masked_twice": (
        lambda q, k, v: F.softmax(q @ k.mT + _min_mask(q) + _min_mask(q), -1) @ v,
        "masked twice",
    ),
    "fill_of_any_number": (
        lambda q, k, v: F.softmax((q @ k.mT).masked_fill(~causal(), -1e4), -1) @ v,
        "hidden scores are filled with -10000",
    ),
    "trainable_mask": (
        lambda q, k, v: F.softmax(q @ k.mT + v.mean(-1, keepdim=True), -1) @ v,
        "the mask requires a gradient",
    ),
    "wide_mask": (
        lambda q, k, v: (
            F.softmax(q.bfloat16() @ k.bfloat16().mT + _min_mask(q), -1).bfloat16() @ v.bfloat16()
        ),
        "the mask is torch.float32",
    ),
    "larger_mask": (
        lambda q, k, v: F.softmax(q[:, :1] @ k[:, :1].mT + torch.zeros(3, 1, 1), -1) @ v,
        "the mask broadcasts the scores",
    ),
    "broadcast_key": (lambda q, k, v: F.softmax(q @ k[:, :1].mT, -1) @ v, "are broadcast"),
    "scale_is_a_tensor": (
        lambda q, k, v: F.softmax(q @ k.mT * v.detach().amax(), -1) @ v,
        "the scale is not a Python number",
    ),
    "negative_scale": (
        lambda q, k, v: F.softmax(q @ k.mT * -0.5, -1) @ v,
        "the scores are scaled by -0.5",
    ),
    "other_values": (
        lambda q, k, v: F.softmax(q @ k.mT, -1) @ v[..., :8],
        "if values have other features",
    ),
    "wider_softmax": (
        lambda q, k, v: (F.softmax(q @ k.mT, -1, dtype=torch.float64).to(q)) @ v,
        "softmax is computed in torch.float64",
    ),
    "over_the_queries": (lambda q, k, v: F.softmax(q @ k.mT, -2) @ v, ""),
    "of_no_product": (lambda q, k, v: F.softmax(torch.cat((q, k), -1)[..., :LENGTH], -1) @ v, ""),
    "not_multiplied": (lambda q, k, v: F.softmax(q @ k.mT, -1).sum(-1, keepdim=True) * v, ""),
    "multiplied_from_the_right": (
        lambda q, k, v: v.mT @ F.softmax(q @ k.mT, -1),
        "not the left factor",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(compare: Any, name: str) -> None:
    function, reason = KEPT[name]
    report = compare(function, *inputs(), inner="eager")
    assert report.counts() == {}, report
    reasons = [refusal.reason for refusal in report.refusals]
    assert any(reason in given for given in reasons) if reason else not reasons, report


def test_half_precision(compare: Any) -> None:
    function = FORMS["added"]
    args = inputs(torch.float16)
    report = compare(lambda *args: merged(function(*args)), *args)
    assert report.counts() == {"softmax_attention": 1}, report


def test_float64_is_left_alone(compare: Any) -> None:
    report = compare(FORMS["plain"], *inputs(torch.float64), inner="eager")
    assert report.counts() == {} and "float64" in report.refusals[0].reason


def test_autocast_is_left_alone(compare: Any) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return FORMS["plain"](q, k, v)

    report = compare(attend, *inputs(), inner="eager")
    assert report.counts() == {} and report.refusals, report


def test_mask_that_is_written(compare: Any) -> None:
    """It looks causal, but hides a row."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = causal()
        seen[0] = False
        return merged(F.softmax((q @ k.mT).masked_fill(~seen, -math.inf), -1) @ v)

    compiled, recorder = compare.compile(attend, "eager")
    args = inputs(grad=False)
    got = compiled(*args)
    assert recorder.report().counts() == {"softmax_attention": 1}
    assert got[:, 0].isnan().all()
    assert_as_good_as_call(got, attend, *args)


def test_dynamic_shapes(compare: Any) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -math.inf)
        return merged(F.softmax(s, -1) @ v)

    compiled, recorder = compare.compile(attend, "eager", dynamic=True)
    for length in (5, 9, 24):
        args = [torch.randn(2, 3, length, SIZE) for _ in range(3)]
        assert_as_good_as_call(compiled(*args), attend, *args)
    assert recorder.graphs == 1
    assert recorder.report().counts() == {"softmax_attention": 1, "causal_attention": 1}, (
        recorder.report()
    )


def test_inductor(compare: Any) -> None:
    form = FORMS["filled"]
    report = compare(lambda *args: merged(form(*args)), *inputs(), inner="inductor")
    assert report.counts() == {"softmax_attention": 1, "causal_attention": 1}
