"""Attention that a model writes out, where a mask hides all keys of a query."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiler.test_softmax_attention import FORMS, LENGTH, SCALE, Tensor, inputs, merged
from training import assert_step, wide

pytestmark = pytest.mark.usefixtures("calls_stay")


def _padding() -> Tensor:
    """Keys of two sequences; the second has none."""
    seen = torch.ones(2, 1, 1, LENGTH, dtype=torch.bool)
    seen[0, ..., 5:], seen[1] = False, False
    return seen


def _some_rows(*heads: int) -> Tensor:
    seen = torch.rand(*heads, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.4
    seen[..., 3, :] = False
    return seen


Hide = Callable[[Tensor, Tensor], Tensor]


NAN: dict[str, tuple[Hide, Callable[[], Tensor]]] = {
    "filled": (lambda s, seen: s.masked_fill(~seen, -math.inf), _some_rows),
    "filled_padding": (lambda s, seen: s.masked_fill(seen == 0, -math.inf), _padding),
    "added": (
        lambda s, seen: s + torch.where(seen, 0.0, -math.inf).to(s.dtype),
        _some_rows,
    ),
    "added_padding": (
        lambda s, seen: s + torch.where(seen, 0.0, -math.inf).to(s.dtype),
        _padding,
    ),
}


LEAST: dict[str, tuple[Hide, Callable[[], Tensor]]] = {
    "filled": (lambda s, seen: s.masked_fill(~seen, torch.finfo(s.dtype).min), _some_rows),
    "filled_for_each_head": (
        lambda s, seen: s.masked_fill(~seen, torch.finfo(s.dtype).min),
        lambda: _some_rows(3),
    ),
    "added": (
        lambda s, seen: s + torch.where(seen, 0.0, torch.finfo(s.dtype).min).to(s.dtype),
        _padding,
    ),
    "unknown": (lambda s, seen: s + torch.finfo(s.dtype).min * (1 - seen.to(s.dtype)), _padding),
}


def _attend(hide: Hide) -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        s = hide(q @ k.mT * SCALE, seen)
        return merged(F.softmax(wide(s), -1).to(v) @ v)

    return attend


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", NAN)
def test_queries_that_see_nothing(compare: Any, name: str, dtype: torch.dtype, grad: bool) -> None:
    """By hand their rows are NaN, and some gradients with them."""
    attend, seen = _attend(NAN[name][0]), NAN[name][1]()
    compiled, recorder = compare.compile(attend)
    results = assert_step(compiled, attend, *inputs(dtype, grad), seen)
    report = recorder.report()
    assert report.counts() == {"softmax_attention": 1}, report
    assert results["output 0"].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", LEAST)
def test_queries_that_see_the_least_number(compare: Any, name: str, dtype: torch.dtype) -> None:
    """By hand their rows are the mean of all values; the gradients are left to the model."""
    attend, seen = _attend(LEAST[name][0]), LEAST[name][1]()
    compiled, recorder = compare.compile(attend)
    exact = _attend(LEAST["filled"][0])
    assert_step(compiled, attend, *inputs(dtype, grad=False), seen, exact=exact)
    assert recorder.report().counts() == {"softmax_attention": 1}, recorder.report()
    report = compare.bits(attend, *inputs(dtype), seen)
    assert report.counts() == {} and "other gradients" in report.refusals[0].reason


def test_masks_of_unknown_numbers(compare: Any) -> None:
    """They may hold -inf, NaN or anything."""
    mask = torch.randn(2, 1, LENGTH, LENGTH)
    mask[0, 0, 3], mask[0, 0, 4], mask[1, 0, 5, 2] = -math.inf, math.nan, math.inf
    mask[1, 0, 6, 2:9] = -math.inf

    compiled, recorder = compare.compile(_attend(lambda s, seen: s + seen))
    args = *inputs(grad=False), mask
    assert_step(compiled, _attend(lambda s, seen: s + seen), *args)
    assert recorder.report().counts() == {"softmax_attention": 1}, recorder.report()


def test_no_nan_is_looked_for_where_none_can_be(compare: Any) -> None:
    compare(lambda *args: merged(FORMS["filled"](*args)), *inputs())
    assert torch.all not in compare.targets()


@pytest.mark.parametrize("name", LEAST)
def test_half_precision_rounds_the_mask(compare: Any, name: str) -> None:
    """A whole row of the least float16 would not be the mean of all values."""
    hide, seen = LEAST[name]
    args = *inputs(torch.float16, grad=False), seen()
    report = compare.bits(_attend(hide), *args, inner="eager")
    assert report.counts() == {} and "float16 rounds" in report.refusals[0].reason
