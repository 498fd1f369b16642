"""When modes disagree."""

from __future__ import annotations

import dataclasses
import math

import pytest
from demo.examples import example
from fusewheel.demo.settings import Settings
from fusewheel.demo.show.checks import common_prefix, run_checks

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


BLOCKS = Settings(dtypes=("fp32", "int4"))


def int4(**changes):
    results = [
        example("eager"),
        example("eager", "int4"),
        dataclasses.replace(example("fusewheel", "int4-int8"), losses=[]),
    ]
    results[1] = dataclasses.replace(results[1], **changes)
    return {check.name: check for check in run_checks(BLOCKS, results) if check.dtype == "int4"}


def test_the_blocks_must_give_the_tokens_of_fp32():
    assert int4()["tokens"].equal
    assert "fp32 eager" in int4()["tokens"].detail
    assert int4(tokens=[3, 1, 4, 1, 6])["tokens"].failed


def test_rounded_activations_may_give_others():
    other = dataclasses.replace(example("fusewheel", "int4-int8"), tokens=[3, 1, 4, 2, 6])
    (check,) = (
        check
        for check in run_checks(BLOCKS, [example("eager"), other])
        if check.name == "tokens" and check.dtype == "int4-int8"
    )
    assert not check.equal
    assert not check.failed


@pytest.mark.parametrize(("error", "failed"), [(2e-5, False), (2.1e-5, True), (math.nan, True)])
def test_logits_may_err_twice_as_much_as_eager(error, failed):
    assert int4(logits_error=error, eager_logits_error=1e-5)["logits"].failed == failed


def test_adapters_must_learn():
    assert not int4()["adapters learn"].failed
    assert int4(losses=[2.5, 2.6])["adapters learn"].failed
    assert int4(losses=[2.5, math.nan])["adapters learn"].failed


def test_without_fp32_the_blocks_are_compared_among_themselves():
    results = [example("eager", "int4"), example("fusewheel", "int4")]
    checks = run_checks(Settings(dtypes=("int4",)), results)
    assert {check.detail.split(":")[0] for check in checks if check.name == "tokens"} == {
        "fusewheel and eager"
    }
