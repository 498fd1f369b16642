"""The matrix of fusewheel's own operators, as a page of the documentation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch

from fusewheel import ops
from fusewheel._operator import Make, Operator
from fusewheel.doctor import columns_named
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


def page(
    progress: Callable[[int, int, str], None] | None = None,
    columns: Sequence[str] = (),
    before: str = "",
) -> str:
    """Runs every column over every operator, in this process, and writes what came out.

    Args:
        progress: called with the number of columns done, the number of all, and the next's name.
        columns: the names of those to run; by default all.
        before: the page as it was, from which the other columns are taken.

    Raises:
        ValueError: a column is unknown, or one that is not run is not on that page for every
            operator, or the page was written with another torch.
    """
    chosen = columns_named(columns) if columns else TABLE
    known = read(before) if columns else {}
    names = [operator.name for operator in ops.operators()]
    for name, column in itertools.product(names, TABLE):
        if column not in chosen and (name, column.name) not in known:
            raise ValueError(f"doctor: the page has no '{column.name}' of {name}: run it too")
    # A pool of threads does not survive the fork that a column tries.
    torch.set_num_threads(1)
    for done, column in enumerate(chosen):
        if progress is not None:
            progress(done, len(chosen), column.name)
        for name, outcome in zip(names, outcomes(column), strict=True):
            known[name, column.name] = outcome
    if progress is not None:
        progress(len(chosen), len(chosen), "")
    return render({name: [known[name, column.name] for column in TABLE] for name in names})


def read(text: str) -> dict[tuple[str, str], Outcome]:
    """The outcomes on a page, by operator and column.

    Raises:
        ValueError: it was written with another torch.
    """
    if f"with torch {torch.__version__};" not in text:
        raise ValueError(f"doctor: the page was not written with torch {torch.__version__}")
    statuses = {mark: status for status, mark in MARKS.items()}
    found = {}
    for part in text.split("\n## ")[1:]:
        theme, *lines = part.splitlines()
        notes = dict(line.split(". ", 1) for line in lines if line[:1].isdigit())
        heads, _, *rows = [line.strip("| ").split(" | ") for line in lines if line[:1] == "|"]
        for name, *cells in rows:
            for column, cell in zip(heads[1:], cells, strict=True):
                mark, _, number = cell.partition(" ")
                reason = notes[number].removeprefix(f"{column}: ") if number else ""
                found[name.strip("`"), column] = Outcome(column, theme, statuses[mark], reason)
    return found


def outcomes(column: Column) -> list[Outcome]:
    """What a column says of each operator."""
    every = [cases(operator) for operator in ops.operators()]
    if column.elsewhere is not None:
        together = examine_together(column, [smallest(own) for own in every])
        return [
            examine(column, own) if found.status is Status.NOT_APPLICABLE else found
            for own, found in zip(every, together, strict=True)
        ]
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
