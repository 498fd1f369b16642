"""Every operator's kernels stay within the gates, or where they were; and none of them races."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import islice
from unittest.mock import patch

import pytest
import torch
from cuda_emulated.counts.cases import CASES, OPERATORS, Case
from cuda_emulated.counts.counted import counted
from cuda_emulated.counts.figures import figures, missed
from cuda_emulated.counts.launches import Instruction, Launch, watching
from cuda_emulated.counts.missed import MISSED
from fusewheel import ops
from fusewheel.dispatch.operator import Make, Operator
from nightly import NIGHTLY

# No case: their products are ATen's, of which nothing is counted, or their kernels are others'.
OF_ATEN = {
    *("linear_backward_x", "linear_backward_weight"),
    "linear_cross_entropy_backward",
}
# In half types.
ON_TENSOR_CORES = (
    *("attention", "attention_varlen", "attention_decode"),
    *("linear_int8", "linear_int4"),
)
GRADIENTS_ON_TENSOR_CORES = ("attention_backward", "attention_varlen_backward")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_figures(case: Case):
    assert missed(counted(case).figures) == MISSED.get(case.name, {})


def test_what_is_missed_exists():
    assert set(MISSED) <= {case.name for case in CASES}


def test_every_operator_has_a_case():
    assert {case.operator for case in CASES} == set(OPERATORS) - OF_ATEN


def check_races(operator: Operator, dtype: torch.dtype, most: int | None = None) -> None:
    """Two blocks have all tasks, one after another; `test_figures` watches whole grids."""
    for arguments in islice(operator.samples(Make(dtype)), most):
        with watching(), patch.dict(os.environ, FUSEWHEEL_EMULATION_BLOCKS="2"):
            operator.overload(*arguments)


@pytest.mark.parametrize("operator", ops.operators(), ids=lambda operator: operator.name)
def test_no_race(operator: Operator):
    check_races(operator, torch.float32)


@pytest.mark.parametrize("name", ON_TENSOR_CORES)
def test_no_race_on_tensor_cores(name: str):
    check_races(OPERATORS[name], torch.bfloat16)


def test_no_race_where_shares_are_multiplied_in_two_parts():
    check_races(OPERATORS["attention"], torch.float16)


@pytest.mark.parametrize("rows", [16, 40])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_no_race_where_activations_are_split(half: torch.dtype, rows: int):
    x, weight = torch.randn(rows, 328), torch.randn(70, 328).to(half)
    x[3] = torch.inf  # these results are added up once more
    with watching(), patch.dict(os.environ, FUSEWHEEL_EMULATION_BLOCKS="2"):
        OPERATORS["linear"].overload(x, weight, torch.randn(70))


@pytest.mark.parametrize("most", [1, pytest.param(None, marks=NIGHTLY)])
@pytest.mark.parametrize("name", GRADIENTS_ON_TENSOR_CORES)
def test_no_race_of_gradients_on_tensor_cores(name: str, most: int | None):
    check_races(OPERATORS[name], torch.bfloat16, most)


@pytest.mark.parametrize("case", [c for c in CASES if "grouped" in c.name], ids=lambda c: c.name)
def test_no_race_where_a_block_has_many_tiles(case: Case):
    """The samples of these operators are smaller than the tiles of tensor cores."""
    with watching(), patch.dict(os.environ, FUSEWHEEL_EMULATION_BLOCKS="2"):
        case.declared.overload(*case.make(case.counted))


GLOBAL = Instruction(0, False, False, 16, 10, 320, 5120, 160, 160, 0, 0)
SHARED = replace(GLOBAL, shared=True, sectors=0, needed=0, passes=40, least_passes=40)
GOOD = Launch("copies", 0, (1, 1, 1), (320, 1, 1), 0, 5120, 5120, 0, (GLOBAL, SHARED))


def test_a_good_launch_misses_no_gate():
    assert missed(figures([GOOD, GOOD], 2 * GOOD.moved)) == {}


@pytest.mark.parametrize(
    ("gate", "launch"),
    [
        ("bytes", replace(GOOD, read=2 * GOOD.read)),
        ("sectors", replace(GOOD, instructions=(replace(GLOBAL, sectors=320), SHARED))),
        ("conflicts", replace(GOOD, instructions=(GLOBAL, replace(SHARED, passes=80)))),
        ("lanes", replace(GOOD, instructions=(replace(GLOBAL, lanes=160), SHARED))),
        ("wide", replace(GOOD, instructions=(replace(GLOBAL, width=4), SHARED))),
    ],
)
def test_a_bad_launch_misses_its_gate(gate, launch):
    assert set(missed(figures([launch], GOOD.moved))) == {gate}
