"""What is wanted of a linear layer."""

from __future__ import annotations

import pytest
from benchmarks.goals import BF16, FP32, READ, goals, judged
from benchmarks.linear import LAYERS


@pytest.mark.parametrize("name", ["linear bf16", "linear fp32 x bf16"])
def test_bfloat16_by_rows(name):
    assert goals(name, 1) == {FP32: 2.0}
    assert goals(name, 4) == goals(name, 16) == {BF16: 4.0, FP32: 1.0}
    assert goals(name, 64) == goals(name, 256) == {FP32: 0.9, BF16: 6.0}
    assert goals(name, 32) == {}


def test_a_goal_is_met_when_it_is_reached():
    reached = {FP32: 6.0, BF16: 1.0, READ: 0.79}
    assert judged("linear_int4", 1, reached) == {"6x fp32": True, "80% of read": False}
    assert judged("linear_int4", 4, reached) == {}
    assert judged("linear_int4 dynamic", 64, reached) == {"1.5x fp32": True}
    assert judged("linear_int8", 1, reached | {FP32: 3.49}) == {"3.5x fp32": False}


def test_every_goal_is_of_a_layer_that_is_timed():
    with_goals = {name for name in LAYERS for rows in (1, 4, 64) if goals(name, rows)}
    assert with_goals == {
        "linear bf16",
        "linear fp32 x bf16",
        "linear_int8",
        "linear_int4",
        "linear_int4 dynamic",
    }
