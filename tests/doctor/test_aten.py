"""PyTorch's own operators are healthy: the doctor raises no false alarm."""

from __future__ import annotations

import pytest
import torch
from doctor.aten import make, operators
from fusewheel import doctor
from fusewheel.doctor.column import Column
from fusewheel.doctor.columns import COLUMNS
from fusewheel.doctor.outcome import Status, examine

OPERATORS = list(operators())
DEAR = {"compilers", "export", "TorchScript"}
USUAL = [c for c in COLUMNS if not c.slow]
QUICK = [c for c in USUAL if c.theme not in DEAR | {"processes"} and c.name != "threads"]
# Tracing takes long: each operator gets one of these columns, and each column some operators.
TRACED = [c for c in USUAL if c.theme in DEAR]


@pytest.mark.parametrize("column", [*QUICK, *TRACED], ids=lambda column: column.name)
def test_no_false_alarm(column: Column):
    some = OPERATORS if column in QUICK else OPERATORS[TRACED.index(column) :: len(TRACED)]
    for op, arguments in some:
        outcome = examine(column, doctor.cases_of(doctor.subject_of(op), [arguments]))
        assert outcome.status is not Status.FAILS, f"{op}: {outcome}"


@pytest.mark.parametrize("column", USUAL, ids=[c.name for c in USUAL])
def test_random_numbers_are_no_mistake(column: Column):
    aten = torch.ops.aten
    # One operator with a gradient, and one with two results.
    both = (
        (aten.rrelu.default, -make(3, 4), 0.1, 0.9, True),
        (aten.native_dropout.default, make(30), 0.5, True),
    )
    # They take turns where tracing takes long.
    for op, *arguments in both[TRACED.index(column) % 2 :][:1] if column in TRACED else both:
        outcome = examine(column, doctor.cases_of(doctor.subject_of(op), [tuple(arguments)]))
        assert outcome.status is not Status.FAILS, outcome


def test_enough_of_them():
    assert len({str(op) for op, _ in OPERATORS}) >= 50
