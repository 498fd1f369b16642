"""A column of the matrix: one way of using an operator, with the test of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusewheel.doctor.case import Case
from fusewheel.doctor.traps import ERROR, Trap


class NotApplicable(Exception):
    """The column says nothing about this case; the message is the reason."""


class Refused(Exception):
    """The operator refuses this use with an error of its own, which is the message."""


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
    """Another place where operators run, of which starting is what costs: many cases share one.

    Attributes:
        results: what is brought back from there for every case.
        agrees: returns if that is right for a case; raises what a column's check raises.
    """

    results: Callable[[Sequence[Case]], Sequence[Any]]
    agrees: Callable[[Case, Any], None]

    def check(self, case: Case) -> None:
        """That of a column, which has one case."""
        self.agrees(case, self.results([case])[0])


@dataclass(frozen=True)
class Column:
    """One way of using an operator.

    Attributes:
        name: what it is called in reports and on the command line.
        theme: the heading it stands under.
        title: what it says of an operator that passes.
        check: returns if a case passes; raises `Finding`, `Refused` or `NotApplicable`, and
            whatever the operator raises.
        most: how many cases are enough, the smallest first; 0 stands for all.
        slow: whether it takes a compiler, gigabytes or several processes, and so is left out unless
            it is asked for.
        trap: what an error is a sign of that says nothing itself.
        elsewhere: where `check` runs the operator, if many cases can share that place.
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
    """Ends a check that has nothing to say."""
    if not condition:
        raise NotApplicable(reason)


def differentiable(case: Case) -> None:
    """Ends a check of derivatives where there are none."""
    applies(not case.subject.random, "random")
    applies(bool(case.floating), "no floating tensor")
    applies(case.smooth, "not differentiable")
