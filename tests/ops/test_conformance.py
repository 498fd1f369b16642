"""Every operator in every part of PyTorch: the columns of the doctor, in this process.

Each operator runs in each column, but not in all of the dear ones: `opcheck`, `functional`, those
of torch.compile and export, which trace, and `gradient` and `second`, which fill Jacobians. Of
these a forward operator runs in every fifth one, a backward operator in every eleventh, so that
each dear column runs at least 5 forward and 2 backward operators. The night runs the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from fusewheel import ops
from fusewheel.dispatch.operator import Operator
from fusewheel.doctor import conformance
from fusewheel.doctor.case import Case
from fusewheel.doctor.column import Column
from fusewheel.doctor.columns import COLUMNS
from fusewheel.doctor.conformance import APART, cases, origin, outcomes, page, read, render
from fusewheel.doctor.outcome import Outcome, Status, examine
from nightly import NIGHTLY

IN_PROCESS = [column for column in COLUMNS if column.elsewhere is None and not column.slow]
ELSEWHERE = [column for column in COLUMNS if column.elsewhere is not None and not column.slow]
DEAR = [
    column.name
    for column in IN_PROCESS
    if column.theme in ("compilers", "export") and column.name not in ("fake", "meta")
] + ["gradient", "second"]
FORWARD = [operator for operator in ops.operators() if operator.function is not None]
BACKWARD = [operator for operator in ops.operators() if operator.function is None]
PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
WRITTEN = read(PAGE.read_text())


def chosen(operator: Operator, column: Column) -> bool:
    """Whether an operator runs in a column before every change: the dear columns take turns."""
    if column.name not in DEAR:
        return True
    own, step = (BACKWARD, 11) if operator in BACKWARD else (FORWARD, 5)
    return (own.index(operator) + DEAR.index(column.name)) % step == 0


PAIRS = [
    pytest.param(o, c, id=f"{o.name}-{c.name}", marks=() if chosen(o, c) else NIGHTLY)
    for o in ops.operators()
    for c in IN_PROCESS
]


@lru_cache(maxsize=1)
def shared_cases(name: str) -> list[Case]:
    """Columns come one after the other: what one has computed of a case, the next one knows."""
    return cases(next(operator for operator in ops.operators() if operator.name == name))


@pytest.mark.parametrize(("declared", "column"), PAIRS)
def test_column(declared: Operator, column: Column):
    outcome = examine(column, shared_cases(declared.name))
    assert outcome.status is not Status.FAILS, (
        f"{outcome.trap} with {outcome.arguments}: {outcome.reason}"
    )
    if outcome.status is Status.REFUSES:
        # Rows need a dimension. A backward operator gets what its forward saved, not a mixture.
        backward = declared.function is None
        assert column.name == "0-dim" or (column.name == "autocast" and backward), outcome.reason
        assert re.search(rf"{declared.name}: \w+ must", outcome.reason), outcome.reason
    as_on_the_page(declared, column, outcome)


def as_on_the_page(operator: Operator, column: Column, outcome: Outcome) -> None:
    """A column that ceases to apply is no less of a change than one that fails."""
    there = torch.cuda.is_available() if column.theme == "devices" else column.name in APART
    # Without what kind of build it is.
    torches = [
        o.partition("+")[0].partition(",")[0] for o in (WRITTEN.origins[column.name], origin())
    ]
    if there or torches[0] != torches[1]:
        return  # The page was written on another machine, or with another torch.
    before = WRITTEN.outcomes.get((operator.name, column.name))
    if before is None:
        return  # A new one: test_the_page_has_every_operator_and_every_column asks for it.
    reason = "" if outcome.status is Status.WORKS else " ".join(outcome.reason.split())
    assert (outcome.status, reason) == (before.status, before.reason), (
        f"docs/conformance.md says otherwise: nox -s conformance -- --columns '{column.name}'"
    )


@pytest.mark.parametrize("status", [Status.NOT_APPLICABLE, Status.REFUSES])
def test_a_column_that_ceases_to_work_is_told_from_the_page(
    status: Status, monkeypatch: pytest.MonkeyPatch
):
    column = next(column for column in COLUMNS if column.name == "vmap")
    monkeypatch.setitem(globals(), "origin", lambda: WRITTEN.origins["vmap"])
    with pytest.raises(AssertionError, match="--columns 'vmap'"):
        as_on_the_page(FORWARD[0], column, Outcome(column.name, column.theme, status, "so"))


def test_the_page_was_written_with_the_torch_of_the_project():
    """With another torch nothing is compared with the page."""
    pinned = re.search(r'^torch = "torch==(.+)"$', PROJECT.read_text(), re.MULTILINE)
    assert pinned is not None
    others = [c.name for c in COLUMNS if pinned[1] not in WRITTEN.origins[c.name]]
    assert set(others) <= set(APART)


def test_the_sample_has_every_dear_column_and_every_operator():
    """What is left to the night is run with other operators, and these in other columns."""
    dear = [column for column in IN_PROCESS if column.name in DEAR]
    for own, operators, columns in ((FORWARD, 5, 2), (BACKWARD, 2, 1)):
        ran = [(o, c) for o in own for c in dear if chosen(o, c)]
        assert min(sum(c is column for _, c in ran) for column in dear) >= operators
        assert min(sum(o is operator for o, _ in ran) for operator in own) >= columns
        assert len(ran) < len(own) * len(dear)


@pytest.mark.parametrize("column", ELSEWHERE, ids=[column.name for column in ELSEWHERE])
def test_elsewhere(column: Column):
    """All operators in one process, because a spawned one takes seconds to start."""
    threads = torch.get_num_threads()
    # A pool of threads does not survive a fork.
    torch.set_num_threads(1)
    try:
        for operator, outcome in zip(
            ops.operators(), outcomes(column, ops.operators()), strict=True
        ):
            assert outcome.status is Status.WORKS, f"{operator.name}: {outcome}"
            as_on_the_page(operator, column, outcome)
    finally:
        torch.set_num_threads(threads)


def test_the_page_has_every_operator_and_every_column():
    """`nox -s conformance` writes it."""
    tables = [
        [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
        for part in PAGE.read_text().split("\n## ")[1:]
    ]
    names = [operator.name for operator in ops.operators()]
    columns = []
    for heads, _, *rows in tables:
        columns += [head.strip() for head in heads[1:]]
        there = [row[0].strip(" `") for row in rows]
        new = " ".join(o.name for o in FORWARD if o.name not in there)
        assert there == names, f"nox -s conformance -- --operators {new}"
        assert {cell.split()[0] for row in rows for cell in row[1:]} <= {"yes", "refuses", "-"}
    assert columns == [column.name for column in COLUMNS]


def test_a_page_is_written_in_parts(monkeypatch: pytest.MonkeyPatch):
    text = PAGE.read_text()
    before = read(text)
    assert render(before) == text
    names = [operator.name for operator in ops.operators()]
    ran = []

    def fails(column: Column, operators: Sequence[Operator]) -> list[Outcome]:
        ran.append(column.name)
        outcome = Outcome(column.name, column.theme, Status.FAILS, "an error", "a mistake")
        return [outcome] * len(operators)

    monkeypatch.setattr(conformance, "outcomes", fails)
    monkeypatch.setattr(conformance, "origin", lambda: "torch 3.0, Python 4.0t")
    threads = torch.get_num_threads()
    try:
        after = read(page(columns=["gaps"], before=text))
        without = text.replace("| huge |", "| a column of yore |")
        every = read(page(before=without.replace("* huge:", "* a column of yore:")))
    finally:
        torch.set_num_threads(threads)
    assert ran == ["gaps", *(c.name for c in COLUMNS if c.name not in APART)]
    for (name, column), outcome in after.outcomes.items():
        if column == "gaps":
            assert (outcome.status, outcome.reason) == (Status.FAILS, "a mistake an error")
        else:
            assert outcome == before.outcomes[name, column]
    assert after.origins == {**before.origins, "gaps": "torch 3.0, Python 4.0t"}
    # What takes another Python stays, what is not there yet was not tried.
    for name in names:
        kept = every.outcomes[name, "free threads"]
        assert kept == before.outcomes[name, "free threads"]
        assert every.outcomes[name, "huge"].reason == "not tried"
    assert every.origins["eager"] == "torch 3.0, Python 4.0t"
    assert every.origins["free threads"] == before.origins["free threads"]
    with pytest.raises(ValueError, match="has no 'threads' of"):
        page(columns=["eager"], before=text.replace("threads |", "no threads |"))


def test_the_rows_of_a_new_operator_are_added(monkeypatch: pytest.MonkeyPatch):
    text = PAGE.read_text()
    old = "\n".join(line for line in text.splitlines() if not line.startswith("| `gelu"))
    before, ran = read(text), set()

    def refuses(column: Column, operators: Sequence[Operator]) -> list[Outcome]:
        ran.update(operator.name for operator in operators)
        return [Outcome(column.name, column.theme, Status.REFUSES, "so")] * len(operators)

    monkeypatch.setattr(conformance, "outcomes", refuses)
    monkeypatch.setattr(conformance, "origin", lambda: "torch 3.0, Python 4.0")
    names = ["gelu", "gelu_mul", "gelu_mul_packed"]
    threads = torch.get_num_threads()
    try:
        after = read(page(before=old, operators=names))
        with pytest.raises(ValueError, match="the page has no 'eager' of gelu_mul: run it too"):
            page(before=old, operators=["gelu"])
        with pytest.raises(ValueError, match="there is no operator gelo"):
            page(before=text, operators=["gelo"])
    finally:
        torch.set_num_threads(threads)
    assert ran == {*names, *(f"{name}_backward" for name in names)}
    assert after.origins == before.origins
    for (name, column), outcome in after.outcomes.items():
        if name not in ran:
            assert outcome == before.outcomes[name, column]
        else:
            assert outcome.reason == ("not tried" if column in APART else "so")


def test_the_page_names_torch_and_python():
    assert re.fullmatch(r"torch \d\S+, Python \d\.\d+\.\S+", origin())
