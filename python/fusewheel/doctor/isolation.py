"""Runs a column in a process of its own, so that a crash and an endless loop are results too."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable

from fusewheel._core.process import Child, ChildError, values
from fusewheel._torch import dynamo
from fusewheel.doctor.case import Case
from fusewheel.doctor.column import Column
from fusewheel.doctor.outcome import Outcome, Status, examine
from fusewheel.doctor.traps import CRASH, HANG


def isolated(column: Column, cases: Callable[[], Iterable[Case]], seconds: float) -> Outcome:
    """Calls `examine` in a forked process that is ended after `seconds`.

    Call it from a process that has not computed anything with several threads, because threads do
    not survive a fork. Otherwise every column that computes with several threads may hang.

    Raises:
        RuntimeError: this system cannot fork.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        raise RuntimeError("doctor: this system cannot fork; pass isolate=False")
    # Imported here once and not in every process, because it takes seconds.
    dynamo.load()

    def examined() -> Outcome:
        return examine(column, cases())

    try:
        with Child(examined, method="fork") as child:
            outcome: Outcome
            (outcome,) = values([child], seconds)
    except ChildError as error:
        trap = HANG if error.late else CRASH
        name, theme = column.name, column.theme
        return Outcome(name, theme, Status.FAILS, error.explanation, trap.name, trap.remedy)
    return outcome
