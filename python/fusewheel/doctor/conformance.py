"""The matrix of fusewheel's own operators, as a page of the documentation."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fusewheel import ops
from fusewheel._operator import Make, Operator
from fusewheel.doctor.case import Case, Subject
from fusewheel.doctor.column import Column
from fusewheel.doctor.columns import COLUMNS
from fusewheel.doctor.outcome import Outcome, Status, examine
from fusewheel.doctor.report import MARKS

LARGEST = 400


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


def page() -> str:
    """Runs every column over every operator, in this process, and writes what came out."""
    # A pool of threads does not survive the fork that a column tries.
    torch.set_num_threads(1)
    rows = {
        operator.name: [examine(column, cases(operator)) for column in COLUMNS]
        for operator in ops.operators()
    }
    return render(rows)


def render(rows: dict[str, list[Outcome]]) -> str:
    """The page, of the outcomes of every operator in the order of the columns."""
    return "\n".join(_lines(rows)) + "\n"


def _lines(rows: dict[str, list[Outcome]]) -> Iterator[str]:
    yield "# Conformance"
    yield ""
    yield "Which operator works in which part of PyTorch. Every cell is a test of its own;"
    yield "`python -m fusewheel doctor --conformance docs/conformance.md` writes this page, and"
    yield "`python -m fusewheel doctor` runs the same columns over an operator of any package."
    yield "yes: it works; refuses: a clear error; -: it does not apply, for the reason below."
    for theme in dict.fromkeys(column.theme for column in COLUMNS):
        columns = [column for column in COLUMNS if column.theme == theme]
        yield from _table(theme, columns, rows)


def _table(theme: str, columns: list[Column], rows: dict[str, list[Outcome]]) -> Iterator[str]:
    yield from ("", f"## {theme}", "")
    yield from (f"* {column.name}: {column.title}" for column in columns)
    yield ""
    yield "| operator | " + " | ".join(column.name for column in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    notes: dict[tuple[str, str, Status], list[str]] = {}
    for name, outcomes in rows.items():
        own = [o for o in outcomes if o.theme == theme]
        yield f"| `{name}` | " + " | ".join(MARKS[o.status] for o in own) + " |"
        for o in own:
            if o.status is not Status.WORKS:
                notes.setdefault((o.column, " ".join(o.reason.split()), o.status), []).append(name)
    if notes:
        yield ""
    for (column, reason, status), names in notes.items():
        who = ", ".join(f"`{n}`" for n in names) if len(names) < len(rows) else "all"
        yield f"* {column}, {status.value}: {reason} ({who})"
