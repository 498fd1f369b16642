"""Attention whose keys and values are repeated for groups of queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("calls_stay")
Tensor = torch.Tensor


def repeat(x: Tensor, groups: int) -> Tensor:
    """As models do it."""
    batch, heads, length, size = x.shape
    wide = x[:, :, None, :, :].expand(batch, heads, groups, length, size)
    return wide.reshape(batch, heads * groups, length, size)


def repeat_by_unsqueeze(x: Tensor, groups: int) -> Tensor:
    """The same in other words."""
    return x.unsqueeze(2).expand(-1, -1, groups, -1, -1).flatten(1, 2)


def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, repeat(k, 3), repeat(v, 3), **options)


def inputs(dtype: torch.dtype = torch.float32, length: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 9, length, 16), (2, 3, length, 16), (2, 3, length, 16)
    q, k, v = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return q, k, v


MASK = torch.randn(2, 1, 7, 7)
ALIKE: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "plain": attention,
    "causal": lambda q, k, v: attention(q, k, v, is_causal=True),
    "scaled": lambda q, k, v: attention(q, k, v, scale=0.3),
    "masked": lambda q, k, v: attention(q, k, v, attn_mask=MASK.to(q)),
    "unsqueezed": lambda q, k, v: F.scaled_dot_product_attention(
        q, repeat_by_unsqueeze(k, 3), value=repeat_by_unsqueeze(v, 3)
    ),
    "shared": lambda q, k, v: attention(q, k, v) + repeat(k, 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", ALIKE)
def test_the_same_values(compare: Any, case: str, dtype: torch.dtype) -> None:
    report = compare.bits(ALIKE[case], *inputs(dtype), inner="eager")
    assert report.counts() == {"grouped_attention": 1}, report


def test_nothing_is_copied(compare: Any) -> None:
    compare(attention, *inputs())
    assert compare.targets() == [torch.ops.aten.scaled_dot_product_attention.default]


def test_any_length(compare: Any) -> None:
    compiled, recorder = compare.compile(attention, "eager", dynamic=True)
    for length in (7, 12):
        torch.testing.assert_close(
            compiled(*inputs(length=length)), attention(*inputs(length=length))
        )
    assert recorder.report().counts() == {"grouped_attention": 1}, recorder.report()


APART: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], str]] = {
    "interleaved": (
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1)
        ),
        "",
    ),
    "other_order": (
        lambda q, k, v: F.scaled_dot_product_attention(
            q, *(x[:, None].expand(2, 3, 3, 7, 16).reshape(2, 9, 7, 16) for x in (k, v))
        ),
        "",
    ),
    "longer": (
        lambda q, k, v: F.scaled_dot_product_attention(
            q[:, :3], *(x[:, :, None].expand(2, 3, 3, 7, 16).reshape(2, 3, 21, 16) for x in (k, v))
        ),
        "",
    ),
    "one_repeated": (
        lambda q, k, v: F.scaled_dot_product_attention(q, repeat(k, 3), q),
        "keys and values are not repeated alike",
    ),
    "one_query": (
        lambda q, k, v: attention(q[:, :1], k, v),
        "the query is broadcast over the heads",
    ),
    "no_groups": (lambda q, k, v: F.scaled_dot_product_attention(q, q, q), ""),
}


@pytest.mark.parametrize("case", APART)
def test_kept(compare: Any, case: str) -> None:
    function, reason = APART[case]
    report = compare(function, *inputs(), inner="eager")
    assert report.counts() == {}
    assert not reason or reason in [refusal.reason for refusal in report.refusals], report


def test_training_is_left_alone(compare: Any) -> None:
    report = compare(attention, *(x.requires_grad_() for x in inputs()), inner="eager")
    assert report.counts() == {}
    (refusal,) = report.refusals
    assert "no fast backward" in refusal.reason


def test_a_write_in_between_refuses(compare: Any) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = repeat(k, 3)
        k.zero_()
        return F.scaled_dot_product_attention(q, keys, repeat(v, 3))

    report = compare(function, *inputs(), inner="eager")
    assert report.counts() == {}, report


def test_a_write_before_is_seen(compare: Any) -> None:
    """As a cache does."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k.index_copy_(2, torch.tensor([3]), q[:, :3, :1] * 2)
        return attention(q, k, v)

    report = compare.bits(function, *inputs(), inner="eager")
    assert report.counts() == {"grouped_attention": 1}, report


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(compare: Any, inside: bool) -> None:
    """Queries of a float32 rotation and values of a bfloat16 projection."""
    q, k, v = inputs()

    def cast(*tensors: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return attention(*tensors)

    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        function = cast if inside else attention
        report = compare.bits(function, q, k, v.bfloat16(), inner="eager")
    assert report.counts() == {"grouped_attention": 1}, report
