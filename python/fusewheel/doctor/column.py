"""A column of the matrix: one way of using an operator, and its test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusewheel.doctor.case import Case
from fusewheel.doctor.traps import ERROR, Trap


class NotApplicable(Exception):
    """The column cannot test this case; the message is the reason."""


class Refused(Exception):
    """The operator refuses this use with an error of its own; the message is that error."""


class Finding(Exception):
    """The operator is wrong here.

    Attributes:
        trap: the name of the mistake and how it is mended.
        detail: what was seen.
    """

    def __init__(self, trap: Trap, detail: str) -> None:
        super().__init__(f"{trap.name}: {detail}")
        self.trap = trap
        self.detail = detail


Check = Callable[[Case], None]


@dataclass(frozen=True)
class Elsewhere:
    """Another place where operators run, such as a new process. Starting it takes long, so many
    cases share one start.

    Attributes:
        results: runs the cases there, and returns the results of each.
        agrees: compares the results of a case; raises like the check of a column.
    """

    results: Callable[[Sequence[Case]], Sequence[Any]]
    agrees: Callable[[Case, Any], None]

    def check(self, case: Case) -> None:
        """The check of a column: runs one case."""
        self.agrees(case, self.results([case])[0])


@dataclass(frozen=True)
class Column:
    """One way of using an operator.

    Attributes:
        name: its name in reports and on the command line.
        theme: the heading that it is listed under.
        title: what is true of an operator that passes.
        check: returns if a case passes; raises `Finding`, `Refused` or `NotApplicable`, or an error
            of the operator.
        most: the number of cases that are enough, smallest first; 0 (default) means all.
        slow: whether it needs a compiler, gigabytes of memory or several processes; it then runs
            only if asked for. Default False.
        trap: the mistake that an unknown error is a sign of.
        elsewhere: the place where `check` runs the operator, if many cases can share one start.
    """

    name: str
    theme: str
    title: str
    check: Check
    most: int = 0
    slow: bool = False
    trap: Trap = ERROR
    elsewhere: Elsewhere | None = None


def applies(condition: bool, reason: str) -> None:
    """Ends a check that does not apply, unless the condition holds."""
    if not condition:
        raise NotApplicable(reason)


def differentiable(case: Case) -> None:
    """Ends a check of derivatives if the case has none."""
    applies(not case.subject.random, "random")
    applies(bool(case.floating), "no floating tensor")
    applies(case.smooth, "not differentiable")
