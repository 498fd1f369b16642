"""The doctor finds every planted mistake by its name, and nothing where it is not planted."""

from __future__ import annotations

import re
from typing import Any

import pytest
from doctor.defects import DEFECTS, Defect
from fusewheel import doctor
from fusewheel.doctor import traps
from fusewheel.doctor.columns import COLUMNS
from fusewheel.doctor.isolation import isolated
from fusewheel.doctor.outcome import Outcome, Status, examine
from nightly import NIGHTLY

BY_NAME = {column.name: column for column in COLUMNS}
ENDS = (traps.CRASH, traps.HANG)
SECONDS = 5.0
PAIRS = [(defect, column) for defect in DEFECTS for column in defect.columns]
IDS = [f"{defect.name}-{column}" for defect, column in PAIRS]
# They compile C++.
COMPILED = ("C++ TorchScript", "C++ package", "AOTInductor")


def by_day(*left_out: str) -> list[Any]:
    """All pairs; those of these columns are for the night."""
    return [
        pytest.param(*pair, marks=NIGHTLY if pair[1] in left_out else (), id=name)
        for pair, name in zip(PAIRS, IDS, strict=True)
    ]


def told(defect: Defect, column: str, op: object) -> Outcome:
    subject = doctor.subject_of(op, defect.modules)
    with defect.where():
        if defect.trap in ENDS and BY_NAME[column].elsewhere is None:
            cases = lambda: doctor.cases_of(subject, defect.samples)  # noqa: E731
            return isolated(BY_NAME[column], cases, SECONDS)
        return examine(BY_NAME[column], doctor.cases_of(subject, defect.samples))


# A C++ package is a compiled model in the program of the column C++ TorchScript, whose defect a
# change looks for in test_slow_columns.py: the program is compiled there.
@pytest.mark.parametrize(("defect", "column"), by_day("C++ package", "C++ TorchScript"))
def test_is_found(defect: Defect, column: str):
    outcome = told(defect, column, defect.faulty)
    assert (outcome.status, outcome.trap) == (Status.FAILS, defect.trap.name), outcome
    assert outcome.reason and re.search(defect.reason, outcome.reason), outcome
    assert outcome.remedy == defect.trap.remedy
    assert outcome.arguments or defect.trap in ENDS
    if defect.trap is traps.CRASH:
        assert re.search(r"SIG\w+|exit status \d", outcome.reason), outcome


# That nothing is wrong with a spawned process a change finds in tests/ops/test_conformance.py.
@pytest.mark.parametrize(("defect", "column"), by_day(*COMPILED, "spawn"))
def test_is_not_found_where_it_is_not(defect: Defect, column: str):
    outcome = told(defect, column, defect.sound)
    assert outcome.status is Status.WORKS, outcome


def test_every_column_finds_a_defect():
    """A new column comes with an operator that it finds something wrong with."""
    assert {column for _, column in PAIRS} == {column.name for column in COLUMNS}


def test_every_mistake_is_planted():
    """A name and a remedy that no operator here leads to may be wrong, or never be given."""
    named = {trap.name for trap in vars(traps).values() if isinstance(trap, traps.Trap)}
    assert named - {defect.trap.name for defect in DEFECTS} == set()
