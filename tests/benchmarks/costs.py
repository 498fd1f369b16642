"""The sizes up to which operators are slower, by the tables in docs/benchmarks.md.

PYTHONPATH=tests python -m benchmarks.costs

A pattern declares these sizes; a test compares them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from fusewheel.compiler.ir.pattern import PaysAbove

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
# Below this ratio of speeds an operator counts as slower; repeated measurements differ by as much.
CLEARLY = 0.95

Row = dict[str, str]
# Of an operator, with a gradient or without: each size, and the ratios of speeds at that size.
Ratios = dict[tuple[str, bool], dict[int, list[float]]]


def derive(page: str) -> dict[str, PaysAbove]:
    """For each operator in the tables of a page, by name, the sizes up to which it is slower.

    Raises:
        ValueError: if an operator is slower at a size and faster at a smaller one.
    """
    inside, alone = list(_rows(page, "rewrites")), list(_rows(page, "operators"))
    # What a call costs shows within a graph, where there are figures for that.
    known = {(row["operator"], row["case"].split()[0]) for row in inside}
    alone = [row for row in alone if (row["operator"], row["case"].split()[0]) not in known]
    none, inductor = Ratios(), Ratios()
    for table, within, pair in (
        (none, ("PyTorch", "fused"), "x eager"),
        (inductor, ("Inductor", "fused, Ind."), "x Induct."),
    ):
        for row in inside:
            _at(table, row).append(float(row[within[0]]) / float(row[within[1]]))
        for row in alone:
            _at(table, row).append(float(row[pair]))
    return {
        name: PaysAbove(
            inductor=_slower_up_to(inductor, name, False),
            inductor_training=_slower_up_to(inductor, name, True),
            none=_slower_up_to(none, name, False),
            none_training=_slower_up_to(none, name, True),
        )
        for name in sorted({name for name, _ in none})
    }


def _at(table: Ratios, row: Row) -> list[float]:
    """The ratios of a row's operator and size."""
    sizes = table.setdefault((row["operator"], row["pass"] == "fwd+bwd"), defaultdict(list))
    return sizes[_elements(row)]


def _slower_up_to(table: Ratios, operator: str, training: bool) -> int:
    """The largest size at which the geometric mean of all dtypes and variants is a loss."""
    ratios = sorted(table.get((operator, training), {}).items())
    losses = [math.prod(found) ** (1 / len(found)) < CLEARLY for _, found in ratios]
    if losses != sorted(losses, reverse=True):
        raise ValueError(f"{operator} is slower at a size and faster at a smaller one: {ratios}")
    return ratios[sum(losses) - 1][0] if any(losses) else 0


def _elements(row: Row) -> int:
    """Of the largest tensor: that of ``1x9+3x64 partial`` is 1x9x64; packed, twice the case."""
    sizes = row["case"].split()[0].split("x")
    elements = math.prod(max(map(int, size.split("+"))) for size in sizes)
    return 2 * elements if row["operator"].endswith("_packed") else elements


def _rows(page: str, name: str) -> Iterator[Row]:
    """The table of a section.

    Raises:
        ValueError: if there is no such section, or it has no table.
    """
    section = page.partition(f"<!-- bench {name} -->\n")[2]
    section = section.partition(f"<!-- end of bench {name} -->\n")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    if not cells:
        raise ValueError(f"the page has no table in a section {name!r}")
    titles, _, *rest = cells
    yield from (dict(zip(titles, row, strict=True)) for row in rest)


if __name__ == "__main__":
    for operator, sizes in derive(PAGE.read_text()).items():
        print(f"{operator}: pays_above={sizes}")
