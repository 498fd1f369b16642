"""When modes disagree."""

from __future__ import annotations

import dataclasses
import math

import pytest
from demo.examples import example
from fusewheel.demo.checks import common_prefix, run_checks
from fusewheel.demo.settings import Settings

BOTH = Settings()


def differing(dtype: str, **changes):
    results = [
        example("eager", dtype),
        dataclasses.replace(example("fusewheel", dtype), **changes),
    ]
    return run_checks(BOTH, results)


def test_equal_modes_pass():
    checks = differing("fp32")
    assert [check.name for check in checks] == ["tokens", "loss"]
    assert all(check.equal and not check.failed for check in checks)


@pytest.mark.parametrize(("dtype", "failed"), [("fp32", True), ("bf16", False)])
def test_another_token_fails_in_fp32_only(dtype, failed):
    check = differing(dtype, tokens=[3, 1, 4, 9, 5])[0]
    assert not check.equal
    assert check.failed is failed
    assert "the first 3 of 5 tokens agree" in check.detail


def test_missing_tokens_are_a_difference():
    assert differing("fp32", tokens=[3, 1, 4])[0].failed


@pytest.mark.parametrize("loss", [2.5 * (1 + 2e-4), math.nan, math.inf])
def test_another_loss_fails(loss):
    assert differing("fp32", losses=[loss])[1].failed


def test_a_loss_within_the_tolerance_passes():
    assert not differing("fp32", losses=[2.5 * (1 + 5e-5)])[1].failed


def test_repeats_with_other_tokens_fail():
    assert [check.name for check in differing("fp32", tokens_repeat=False) if check.failed] == [
        "repeats"
    ]


def test_without_eager_the_first_mode_is_the_reference():
    settings = Settings(modes=("inductor", "fusewheel"))
    results = [example("inductor"), example("fusewheel")]
    assert "fusewheel and inductor" in run_checks(settings, results)[0].detail


@pytest.mark.parametrize(
    ("left", "right", "length"), [([], [], 0), ([1, 2], [1, 2], 2), ([1, 2], [1, 3], 1)]
)
def test_common_prefix(left, right, length):
    assert common_prefix(left, right) == length
