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
from fusewheel.doctor.conformance import TABLE, cases, outcomes, page, read, render
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
    assert columns == [column.name for column in TABLE]


def test_a_page_is_written_in_parts(monkeypatch: pytest.MonkeyPatch):
    text = re.sub(r"(?<=with torch )[^;]+", torch.__version__, PAGE.read_text())
    found = read(text)
    names = [operator.name for operator in ops.operators()]
    assert render({name: [found[name, c.name] for c in TABLE] for name in names}) == text
    failed = Outcome("eager", "eager", Status.FAILS, "an error", "a mistake")
    monkeypatch.setattr(conformance, "outcomes", lambda column: [failed] * len(names))
    threads = torch.get_num_threads()
    try:
        changed = page(columns=["eager"], before=text)
    finally:
        torch.set_num_threads(threads)
    for (name, column), outcome in read(changed).items():
        if column == "eager":
            assert (outcome.status, outcome.reason) == (Status.FAILS, "a mistake an error")
        else:
            assert outcome == found[name, column]
    with pytest.raises(ValueError, match="has no 'threads' of"):
        page(columns=["eager"], before=text.replace("| threads |", "| no column |"))
    with pytest.raises(ValueError, match="not written with torch"):
        page(columns=["eager"], before=PAGE.read_text().replace("with torch ", "with torch 1."))
