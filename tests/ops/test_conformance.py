"""Every operator in every part of PyTorch: the columns of the doctor, in this process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from fusewheel import ops
from fusewheel._operator import Operator
from fusewheel.doctor import conformance
from fusewheel.doctor.column import Column
from fusewheel.doctor.columns import COLUMNS
from fusewheel.doctor.conformance import APART, cases, origin, outcomes, page, read, render
from fusewheel.doctor.outcome import Outcome, Status, examine

IN_PROCESS = [column for column in COLUMNS if column.elsewhere is None and not column.slow]
ELSEWHERE = [column for column in COLUMNS if column.elsewhere is not None and not column.slow]
PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"


@pytest.mark.parametrize("column", IN_PROCESS, ids=[column.name for column in IN_PROCESS])
def test_column(operator: Operator, column: Column):
    outcome = examine(column, cases(operator))
    assert outcome.status is not Status.FAILS, (
        f"{outcome.trap} with {outcome.arguments}: {outcome.reason}"
    )
    if outcome.status is Status.REFUSES:
        # Rows need a dimension. A backward operator gets what its forward saved, not a mixture.
        backward = operator.function is None
        assert column.name == "0-dim" or (column.name == "autocast" and backward), outcome.reason
        assert re.search(rf"{operator.name}: \w+ must", outcome.reason), outcome.reason


@pytest.mark.parametrize("column", ELSEWHERE, ids=[column.name for column in ELSEWHERE])
def test_elsewhere(column: Column):
    """All operators in one process, because a spawned one takes seconds to start."""
    threads = torch.get_num_threads()
    # A pool of threads does not survive a fork.
    torch.set_num_threads(1)
    try:
        for operator, outcome in zip(ops.operators(), outcomes(column), strict=True):
            assert outcome.status is Status.WORKS, f"{operator.name}: {outcome}"
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
        assert [row[0].strip(" `") for row in rows] == names
        assert {cell.split()[0] for row in rows for cell in row[1:]} <= {"yes", "refuses", "-"}
    assert columns == [column.name for column in COLUMNS]


def test_a_page_is_written_in_parts(monkeypatch: pytest.MonkeyPatch):
    text = PAGE.read_text()
    before = read(text)
    assert render(before) == text
    names = [operator.name for operator in ops.operators()]
    ran = []

    def fails(column: Column) -> list[Outcome]:
        ran.append(column.name)
        return [Outcome(column.name, column.theme, Status.FAILS, "an error", "a mistake")] * len(
            names
        )

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


def test_the_page_names_torch_and_python():
    assert re.fullmatch(r"torch \d\S+, Python \d\.\d+\.\S+", origin())
