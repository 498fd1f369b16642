"""The doctor finds every planted mistake, by its name."""

from __future__ import annotations

import pytest
from doctor.defects import DEFECTS, Defect
from fusewheel import doctor
from fusewheel.doctor import traps
from fusewheel.doctor.columns import COLUMNS
from fusewheel.doctor.isolation import isolated
from fusewheel.doctor.outcome import Outcome, Status, examine

BY_NAME = {column.name: column for column in COLUMNS}


def found(defect: Defect, seconds: float = 5.0) -> Outcome:
    column, subject = BY_NAME[defect.column], doctor.subject_of(defect.op)
    if defect.trap in (traps.CRASH, traps.HANG):
        return isolated(column, lambda: doctor.cases_of(subject, defect.samples), seconds)
    return examine(column, doctor.cases_of(subject, defect.samples))


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.name for defect in DEFECTS])
def test_is_found(defect: Defect):
    outcome = found(defect)
    assert (outcome.status, outcome.trap) == (Status.FAILS, defect.trap.name), outcome
    assert outcome.reason
    assert outcome.remedy == defect.trap.remedy
    assert outcome.arguments or defect.trap in (traps.CRASH, traps.HANG)


def test_enough_of_them():
    assert len({defect.name for defect in DEFECTS}) >= 25
    assert len({defect.trap.name for defect in DEFECTS}) >= 20
