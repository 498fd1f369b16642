"""The matrix of fusewheel's own operators, as a page of the documentation."""

from __future__ import annotations

import itertools
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from fusewheel import ops
from fusewheel._core.progress import progress
from fusewheel.dispatch.operator import Make, Operator
from fusewheel.doctor.case import Case, Subject
from fusewheel.doctor.column import Column
from fusewheel.doctor.columns import COLUMNS
from fusewheel.doctor.examination import columns_named
from fusewheel.doctor.outcome import Outcome, Status, examine, examine_together, smallest
from fusewheel.doctor.report import MARKS

LARGEST = 400
# They run only if they are named: one needs another Python, the other gigabytes and minutes.
APART = ("free threads", "huge")


@dataclass
class Page:
    """The contents of the page.

    Attributes:
        outcomes: the outcomes, by operator and column.
        origins: for each column, the versions of torch and Python that it was run with.
    """

    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)


def subject(operator: Operator) -> Subject:
    """A declared operator as a subject of the doctor."""
    overload = operator.overload
    return Subject(operator.name, overload, overload._schema, ("fusewheel",))


def cases(operator: Operator, dtype: torch.dtype = torch.float32, seed: int = 30) -> list[Case]:
    """The small samples of an operator."""
    own = subject(operator)
    found = [Case(own, arguments) for arguments in operator.samples(Make(dtype, seed=seed))]
    small = [case for case in found if case.size <= LARGEST]
    return small or [min(found, key=lambda case: case.size)]


def page(
    columns: Sequence[str] = (),
    before: str = "",
    operators: Sequence[str] = (),
) -> str:
    """Runs columns over operators, in this process, and returns the page.

    Args:
        columns: the names of the columns to run; default (), which means all except `APART`.
        before: the old page, from which all else is taken; default "".
        operators: the names of operators, each with its backward operator; default (), which means
            all. With names the page goes on saying with which torch its columns were run.

    Raises:
        ValueError: a column or an operator is unknown, or what is not run is missing on the old
            page.
    """
    chosen = columns_named(columns or [c.name for c in COLUMNS if c.name not in APART])
    written = read(before)
    declared = _operators_named(operators)
    for operator, column in itertools.product(ops.operators(), COLUMNS):
        name, run = operator.name, operator in declared and column in chosen
        if not run and (name, column.name) not in written.outcomes:
            if column.name not in APART:
                raise ValueError(f"doctor: the page has no '{column.name}' of {name}: run it too")
            missing = Outcome(column.name, column.theme, Status.NOT_APPLICABLE, "not tried")
            written.outcomes[name, column.name] = missing
    # A thread pool does not survive the fork that a column makes.
    torch.set_num_threads(1)
    for column in progress(chosen, describe=lambda column: column.name):
        if not operators or column.name not in written.origins:
            written.origins[column.name] = origin()
        for operator, outcome in zip(declared, outcomes(column, declared), strict=True):
            written.outcomes[operator.name, column.name] = outcome
    return render(written)


def _operators_named(names: Sequence[str]) -> list[Operator]:
    """These operators and their backward operators; all for no names."""
    every = ops.operators()
    unknown = sorted(set(names) - {operator.name for operator in every})
    if unknown:
        raise ValueError(f"doctor: there is no operator {', '.join(unknown)}")
    wanted = {*names, *(f"{name}_backward" for name in names)}
    return [operator for operator in every if not names or operator.name in wanted]


def origin() -> str:
    """The torch and the Python of this process."""
    free = "t" if "t" in getattr(sys, "abiflags", "") else ""
    return f"torch {torch.__version__}, Python {platform.python_version()}{free}"


def read(text: str) -> Page:
    """The contents of a page; empty for an empty text."""
    statuses = {mark: status for status, mark in MARKS.items()}
    found = Page()
    usual = re.search(r"with (torch .+?);", text)
    for part in text.split("\n## ")[1:]:
        theme, *lines = part.splitlines()
        notes = dict(line.split(". ", 1) for line in lines if line[:1].isdigit())
        titles = dict(line[2:].split(": ", 1) for line in lines if line[:1] == "*")
        heads, _, *rows = [line.strip("| ").split(" | ") for line in lines if line[:1] == "|"]
        for column in heads[1:]:
            other = re.search(r"\((torch .+)\)$", titles.get(column, "")) or usual
            found.origins[column] = other[1] if other else ""
        for name, *cells in rows:
            for column, cell in zip(heads[1:], cells, strict=True):
                mark, _, number = cell.partition(" ")
                reason = notes[number].removeprefix(f"{column}: ") if number else ""
                outcome = Outcome(column, theme, statuses[mark], reason)
                found.outcomes[name.strip("`"), column] = outcome
    return found


def outcomes(column: Column, operators: Sequence[Operator]) -> list[Outcome]:
    """The outcome of a column for each of the operators."""
    every = [cases(operator) for operator in operators]
    if column.elsewhere is not None:
        together = examine_together(column, [smallest(own) for own in every])
        return [
            examine(column, own) if found.status is Status.NOT_APPLICABLE else found
            for own, found in zip(every, together, strict=True)
        ]
    return [examine(column, own) for own in every]


def render(written: Page) -> str:
    """The page, in the order of the operators and the columns."""
    return "\n".join(_lines(written)) + "\n"


def _lines(written: Page) -> Iterator[str]:
    usual = written.origins[COLUMNS[0].name]
    yield "# Conformance"
    yield ""
    yield "Which operator works in which part of PyTorch. Every cell is a test of its own, run by"
    yield f"`nox -s conformance`, which writes this page with {usual};"
    yield f"{' and '.join(APART)} are run only when they are named ([how](doctor.md#conformance))."
    yield "[The doctor](doctor.md) runs the same columns over an operator of any package."
    yield ""
    yield "yes: it works; refuses: it raises a clear error; -: it does not apply; **no**: it fails."
    yield "The numbers are those of the reasons below each table."
    for theme in dict.fromkeys(column.theme for column in COLUMNS):
        yield from ("", f"## {theme}", "")
        columns = [column for column in COLUMNS if column.theme == theme]
        for column in columns:
            own = written.origins.get(column.name, usual)
            yield f"* {column.name}: {column.title}" + (f" ({own})" if own != usual else "")
        yield from _table(columns, written)


def _table(columns: list[Column], written: Page) -> Iterator[str]:
    yield ""
    yield "| operator | " + " | ".join(column.name for column in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    notes: dict[str, int] = {}
    for operator in ops.operators():
        found = (written.outcomes[operator.name, column.name] for column in columns)
        yield f"| `{operator.name}` | " + " | ".join(_cell(o, notes) for o in found) + " |"
    if notes:
        yield ""
        yield from (f"{number}. {note}" for note, number in notes.items())


def _cell(outcome: Outcome, notes: dict[str, int]) -> str:
    if outcome.status is Status.WORKS:
        return MARKS[outcome.status]
    reason = " ".join(f"{outcome.trap} {outcome.reason}".split())
    number = notes.setdefault(f"{outcome.column}: {reason}", len(notes) + 1)
    return f"{MARKS[outcome.status]} {number}"
