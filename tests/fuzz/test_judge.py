"""The judge of the fuzz: no false alarms, and none missed."""

from __future__ import annotations

import pytest
import torch
from neighbours import assert_call_as_good_as_eager, compute


def through_a_large_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x, of which the sum with something large leaves only the first bits."""
    large = 3000.0 * y
    return (x + large) - large


def judge(off: float, x: float = 0.1, dtype: torch.dtype = torch.float64) -> None:
    """Judges a function that is exact, or `off`, where eager always loses the same."""
    arguments = tuple(torch.full((1,), v, dtype=dtype) for v in (x, 1.0))
    assert_call_as_good_as_eager(
        compute,
        lambda x, y: x + off,
        through_a_large_sum,
        arguments,
        "output",
    )


def test_eager_in_float64_is_not_exact():
    judge(0.0)


def test_float32_where_float64_was_asked_for_is_seen():
    with pytest.raises(AssertionError, match="output 0"):
        judge(1e-8)


def test_that_eager_hit_a_number_and_all_around_it_is_luck():
    judge(1e-5, x=2.0**-12, dtype=torch.float32)
    with pytest.raises(AssertionError, match="output 0"):
        judge(2e-3, x=2.0**-12, dtype=torch.float32)


def test_zero_for_what_is_small_is_seen():
    with pytest.raises(AssertionError, match="output 0"):
        assert_call_as_good_as_eager(
            compute,
            lambda x: 0.0 * x,
            lambda x: torch.exp(-x * x / 2),
            (torch.tensor(-8.0),),
            "output",
        )
