"""What is wanted of a linear layer and of an operator."""

from __future__ import annotations

import pytest
from benchmarks import goals
from benchmarks.goals import (
    BF16,
    EAGER,
    FASTER,
    FP32,
    INDUCTOR,
    NBITS,
    READ,
    ROOF,
    judged,
    linear_goals,
    operator_goals,
)
from benchmarks.linear import LAYERS


@pytest.mark.parametrize("fast", [False, True])
def test_bfloat16_by_rows(monkeypatch, fast):
    monkeypatch.setattr(goals, "has_avx512", lambda: fast)
    name = "linear fp32 x bf16"
    few, many = ({}, {}) if fast else ({BF16: 4.0, FP32: 1.0}, {FP32: 0.9, BF16: 6.0})
    assert linear_goals(name, 1) == {FP32: 2.0, READ: 0.8}
    assert linear_goals(name, 4) == linear_goals(name, 16) == few
    assert linear_goals(name, 64) == linear_goals(name, 256) == many
    assert linear_goals(name, 32) == {}
    assert linear_goals("linear bf16", 64) == {BF16: 0.98} | many


@pytest.mark.parametrize("direction", ["fwd", "fwd+bwd"])
@pytest.mark.parametrize("rows", [1, 2, 32, 512])
def test_no_layer_is_slower_than_that_of_pytorch_in_its_dtype(rows, direction):
    assert linear_goals("linear fp32", rows, direction) == {FP32: 0.98}
    assert linear_goals("linear bf16", rows, direction)[BF16] >= 0.98


def test_no_goal_of_the_forward_pass_holds_with_gradients():
    assert linear_goals("linear fp32 x bf16", 1, "fwd+bwd") == {}
    assert linear_goals("linear_int4", 1, "fwd+bwd") == {}


def test_a_goal_is_met_when_it_is_reached():
    reached = {FP32: 6.0, BF16: 1.0, READ: 0.79}
    assert judged(linear_goals("linear_int4", 1), reached) == {
        "6x fp32": True,
        "80% of read": False,
    }
    assert judged(linear_goals("linear_int4", 4), reached) == {}
    assert judged(linear_goals("linear_int4 dynamic", 64), reached | {NBITS: 1.6}) == {
        "2x fp32": True,
        "1.7x MatMulNBits": False,
    }
    assert judged(linear_goals("linear_int8", 1), reached | {FP32: 3.49}) == {"3.5x fp32": False}


def test_every_goal_is_of_a_layer_that_is_timed():
    with_goals = {name for name in LAYERS for rows in (1, 4, 64) if linear_goals(name, rows)}
    assert with_goals == {
        "linear fp32",
        "linear bf16",
        "linear fp32 x bf16",
        "linear_int8",
        "linear_int8 dynamic",
        "linear_int4",
        "linear_int4 dynamic",
    }


def test_operators_by_name_case_and_direction():
    assert operator_goals("rope", "1x9", "fwd+bwd") == {FASTER: 0.95}
    assert operator_goals("rms_norm", "8x576", "fwd") == {FASTER: 0.95}
    norm = operator_goals("add_layer_norm", "8x576", "fwd+bwd")
    assert norm == {FASTER: 0.95, INDUCTOR: 2.0, ROOF: 0.6}
    assert operator_goals("gelu_mul_packed", "8x576 tanh", "fwd+bwd")[INDUCTOR] == 4.0
    assert INDUCTOR not in operator_goals("gelu_mul", "8x576 erf", "fwd+bwd")
    assert operator_goals("cross_entropy", "1x9", "fwd+bwd")[EAGER] == 2.5


def test_goals_in_words():
    reached = {ROOF: 0.61, INDUCTOR: 1.9, FASTER: 0.95}
    wanted = operator_goals("rms_norm", "8x576", "fwd+bwd")
    assert judged(wanted, reached) == {
        "0.95x the faster": True,
        "2x inductor": False,
        "60% of roof": True,
    }
