"""The matrix of fusewheel's own operators, as a page of the documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from fusewheel import ops
from fusewheel._operator import Make, Operator
from fusewheel.doctor.case import Case, Subject
from fusewheel.doctor.column import Column
from fusewheel.doctor.columns import COLUMNS
from fusewheel.doctor.outcome import Outcome, Status, examine, examine_together, smallest
from fusewheel.doctor.report import MARKS

LARGEST = 400
# Minutes for an operator, and whether it applies depends on the memory that is free.
LEFT_OUT = "huge"
TABLE = tuple(column for column in COLUMNS if column.name != LEFT_OUT)


def subject(operator: Operator) -> Subject:
    """A declared operator, for the doctor."""
    overload = operator.overload
    return Subject(operator.name, overload, overload._schema, ("fusewheel",))


def cases(operator: Operator, dtype: torch.dtype = torch.float32, seed: int = 30) -> list[Case]:
    """Its samples that are small."""
    own = subject(operator)
    found = [Case(own, arguments) for arguments in operator.samples(Make(dtype, seed=seed))]
    small = [case for case in found if case.size <= LARGEST]
    return small or [min(found, key=lambda case: case.size)]


def page(progress: Callable[[int, int, str], None] | None = None) -> str:
    """Runs every column over every operator, in this process, and writes what came out.

    Args:
        progress: called with the number of columns done, the number of all, and the next's name.
    """
    # A pool of threads does not survive the fork that a column tries.
    torch.set_num_threads(1)
    found = []
    for done, column in enumerate(TABLE):
        if progress is not None:
            progress(done, len(TABLE), column.name)
        found.append(outcomes(column))
    if progress is not None:
        progress(len(TABLE), len(TABLE), "")
    names = [operator.name for operator in ops.operators()]
    return render(dict(zip(names, map(list, zip(*found, strict=True)), strict=True)))


def outcomes(column: Column) -> list[Outcome]:
    """What a column says of each operator."""
    every = [cases(operator) for operator in ops.operators()]
    if column.elsewhere is not None:
        return examine_together(column, [smallest(own) for own in every])
    return [examine(column, own) for own in every]


def render(rows: dict[str, list[Outcome]]) -> str:
    """The page, of the outcomes of every operator in the order of the columns."""
    return "\n".join(_lines(rows)) + "\n"


def _lines(rows: dict[str, list[Outcome]]) -> Iterator[str]:
    yield "# Conformance"
    yield ""
    yield "Which operator works in which part of PyTorch. Every cell is a test of its own, run by"
    yield "`nox -s conformance`, which writes this page with torch " + torch.__version__ + ";"
    yield "[the doctor](doctor.md) runs the same columns over an operator of any package."
    yield ""
    yield "yes: it works; refuses: it raises a clear error; -: it does not apply; **no**: it fails."
    yield "The numbers are those of the reasons below each table."
    for theme in dict.fromkeys(column.theme for column in TABLE):
        columns = [column for column in TABLE if column.theme == theme]
        yield from _table(theme, columns, rows)


def _table(theme: str, columns: list[Column], rows: dict[str, list[Outcome]]) -> Iterator[str]:
    yield from ("", f"## {theme}", "")
    yield from (f"* {column.name}: {column.title}" for column in columns)
    yield ""
    yield "| operator | " + " | ".join(column.name for column in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    notes: dict[str, int] = {}
    for name, found in rows.items():
        own = [outcome for outcome in found if outcome.theme == theme]
        yield f"| `{name}` | " + " | ".join(_cell(outcome, notes) for outcome in own) + " |"
    if notes:
        yield ""
        yield from (f"{number}. {note}" for note, number in notes.items())


def _cell(outcome: Outcome, notes: dict[str, int]) -> str:
    if outcome.status is Status.WORKS:
        return MARKS[outcome.status]
    reason = " ".join(f"{outcome.trap} {outcome.reason}".split())
    number = notes.setdefault(f"{outcome.column}: {reason}", len(notes) + 1)
    return f"{MARKS[outcome.status]} {number}"
