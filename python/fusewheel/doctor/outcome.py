"""The outcome of a column for an operator, and how it is found."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

from fusewheel.doctor.case import Case
from fusewheel.doctor.column import Column, Finding, NotApplicable, Refused
from fusewheel.doctor.traps import ERROR, diagnosed

# The time for the search for smaller arguments, in seconds.
SHRINKING = 2.0


class Status(str, Enum):
    """One of four."""

    WORKS = "works"
    REFUSES = "refuses"
    FAILS = "fails"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Outcome:
    """The result of a column.

    Attributes:
        column: the name of the column.
        theme: the heading that the column is listed under.
        status: the result.
        reason: the error, or why the column does not apply.
        trap: the name of the mistake; empty unless the column fails.
        remedy: what to write to mend it; empty unless the column fails.
        arguments: the smallest arguments that show the mistake.
    """

    column: str
    theme: str
    status: Status
    reason: str = ""
    trap: str = ""
    remedy: str = ""
    arguments: str = ""


def examine(column: Column, cases: Iterable[Case]) -> Outcome:
    """Runs a column over cases in this process, smallest first.

    It ends with the first case that fails, which is the smallest one. Halving the dimensions of
    that case may find a smaller one.
    """
    applied = refused = None
    reasons: list[str] = []
    count = 0
    for case in sorted(cases, key=_order):
        outcome = _run(column, case)
        if outcome.status is Status.FAILS:
            return _smallest(column, case, outcome)
        if outcome.status is Status.NOT_APPLICABLE:
            reasons.append(outcome.reason)
            continue
        if outcome.status is Status.REFUSES:
            refused = refused or outcome
        else:
            applied = outcome
        count += 1
        if count == column.most:
            break
    # An operator that works with one layout and refuses another one works.
    found = applied or refused
    reason = reasons[0] if reasons else "no samples"
    return found or Outcome(column.name, column.theme, Status.NOT_APPLICABLE, reason)


def examine_together(column: Column, cases: Sequence[Case]) -> list[Outcome]:
    """Runs a column that has a place elsewhere over one case of each of several operators, in one
    start. If that fails, it runs one after the other.
    """
    assert column.elsewhere is not None
    try:
        results = column.elsewhere.results(cases)
    except Exception:
        return [examine(column, [case]) for case in cases]
    agrees = column.elsewhere.agrees
    return [
        _run(replace(column, check=partial(_agrees, agrees, got)), case)
        for case, got in zip(cases, results, strict=True)
    ]


def _agrees(agrees: Callable[[Case, Any], None], got: Any, case: Case) -> None:
    agrees(case, got)


def smallest(cases: Iterable[Case]) -> Case:
    """The case that `examine` runs first."""
    return min(cases, key=_order)


def _order(case: Case) -> tuple[bool, int]:
    """Orders cases by size; those with one element or none come last, because they show little."""
    trivial = any(t.numel() < 2 for t in case.tensors)
    return trivial, case.size


def _run(column: Column, case: Case) -> Outcome:
    def outcome(status: Status, reason: str = "", **more: Any) -> Outcome:
        return Outcome(column.name, column.theme, status, reason, **more)

    try:
        column.check(case)
    except NotApplicable as why:
        return outcome(Status.NOT_APPLICABLE, str(why))
    except Refused as refusal:
        return outcome(Status.REFUSES, str(refusal), arguments=str(case))
    except Finding as finding:
        trap, reason = finding.trap, finding.detail
    except AssertionError as error:
        trap, reason = ERROR, str(error).strip() or _place(error)
    except Exception as error:
        trap, reason = (
            diagnosed(error, column.trap),
            f"{type(error).__name__}: {str(error).strip()}",
        )
    else:
        return outcome(Status.WORKS)
    return outcome(Status.FAILS, reason, trap=trap.name, remedy=trap.remedy, arguments=str(case))


def _place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {frame.name}: {frame.line}"


def _smallest(column: Column, case: Case, outcome: Outcome) -> Outcome:
    deadline = time.monotonic() + SHRINKING
    while time.monotonic() < deadline:
        for size in sorted({s for t in case.tensors for s in t.shape if s > 1}, reverse=True):
            halved = case.resized(size, size // 2)
            if halved is None:
                continue
            again = _run(column, halved)
            if again.status is Status.FAILS and again.trap == outcome.trap:
                case, outcome = halved, again
                break
        else:
            break
    return outcome
