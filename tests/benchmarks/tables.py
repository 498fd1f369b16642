"""How a table of the benchmark looks: on the screen, and in Markdown between two markers."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import origin
from benchmarks.machine import heading
from benchmarks.results import Cell, Run

# Bars of a chart: panel, group, series, and how many times as fast as 1.
Panels = dict[str, dict[str, dict[str, float]]]

_PAGE = "# Benchmarks\n\nWritten by `nox -s bench`, see [Contributing](../CONTRIBUTING.md).\n"


@dataclass(frozen=True)
class Column:
    """One column; a negative width aligns to the left."""

    title: str
    width: int
    text: Callable[[Cell], str]


@dataclass(frozen=True)
class Table:
    """One kind of measurement.

    Attributes:
        title: its heading.
        columns: from left to right.
        notes: how to read it, for these options.
        add_options: adds those of its own.
        cells: measures, one cell after the other.
        summary: lines below the table.
        panels: what a chart shows.
    """

    title: str
    columns: Sequence[Column]
    notes: Callable[[argparse.Namespace], str]
    add_options: Callable[[argparse.ArgumentParser], None]
    cells: Callable[[argparse.Namespace], Iterator[Cell]]
    summary: Callable[[Sequence[Cell]], list[str]]
    panels: Callable[[Sequence[Cell]], Panels]


def wrapped(text: str) -> str:
    """A paragraph of the width of this repository's lines."""
    return textwrap.fill(text, 100, break_on_hyphens=False)


def met(measured: Sequence[Cell]) -> list[str]:
    """How many goals are, as a line of a summary."""
    reached = [reached for cell in measured for reached in cell.goals.values()]
    return [f"goals met: {sum(reached)} of {len(reached)}"] if reached else []


def missed(cell: Cell) -> str:
    """The goals that are not met, in words."""
    return ", ".join(goal for goal, reached in cell.goals.items() if not reached)


def header(table: Table) -> str:
    """The line above the cells."""
    return _aligned(table.columns, [column.title for column in table.columns])


def line(table: Table, cell: Cell) -> str:
    """A cell as it appears on the screen, as soon as it is measured."""
    return _aligned(table.columns, [column.text(cell) for column in table.columns])


def markdown(table: Table, run: Run, notes: str, chart: str | None = None) -> str:
    """A section with everything the figures depend on; `chart` is the address of a picture."""
    about = "\\\n".join(
        filter(None, [*heading(run.machine).splitlines(), origin.line(run.machine)])
    )
    parts = [f"## {table.title}{_part(run)}{_limit(run)}", about, notes]
    parts.append("\n".join(f"* {text}" for text in table.summary(run.cells)))
    if chart:
        parts.append(f"![{table.title}]({chart})")
    rows = [[column.title for column in table.columns]]
    rows.append([":--" if column.width < 0 else "--:" for column in table.columns])
    rows += [[column.text(cell) for column in table.columns] for cell in run.cells]
    parts.append("\n".join("| " + " | ".join(row) + " |" for row in rows))
    return "\n\n".join(part for part in parts if part) + "\n"


def insert(path: Path, run: Run, section: str) -> None:
    """Puts a section in place of that of the same table, part and instructions; makes the page."""
    name = " ".join(filter(None, (run.table, run.machine.get("part"), run.machine["isa"])))
    begin, end = f"<!-- bench {name} -->\n", f"<!-- end of bench {name} -->\n"
    page = path.read_text() if path.exists() else _PAGE
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if found and not closed:
        raise ValueError(f"{path} has {begin.strip()!r} without {end.strip()!r}")
    if not found:
        before += "\n"
    path.write_text(f"{before}{begin}{section}{end}{after}")


def _part(run: Run) -> str:
    part = run.machine.get("part")
    return f": {part}" if part else ""


def _limit(run: Run) -> str:
    level = run.machine["isa"]
    return f", held to {level}" if level else ""


def _aligned(columns: Sequence[Column], texts: Sequence[str]) -> str:
    cells = [
        text.ljust(-column.width) if column.width < 0 else text.rjust(column.width)
        for column, text in zip(columns, texts, strict=True)
    ]
    return "  ".join(cells).rstrip()
