"""Every operator in every part of PyTorch: the columns of the doctor, in this process."""

from __future__ import annotations

import re

import pytest
import torch
from fusewheel import ops
from fusewheel._operator import Operator
from fusewheel.doctor.column import Column
from fusewheel.doctor.columns import COLUMNS
from fusewheel.doctor.columns.processes import elsewhere
from fusewheel.doctor.columns.values import equal
from fusewheel.doctor.conformance import cases
from fusewheel.doctor.outcome import Status, examine

IN_PROCESS = [column for column in COLUMNS if not column.slow and column.theme != "processes"]


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


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes(method: str):
    """All operators in one process, because a spawned one takes seconds to start."""
    threads = torch.get_num_threads()
    # A pool of threads does not survive a fork.
    torch.set_num_threads(1)
    try:
        own = [cases(operator)[0] for operator in ops.operators()]
        for case, got in zip(own, elsewhere(own, method), strict=True):
            assert equal(got, case.results()), case.subject.name
    finally:
        torch.set_num_threads(threads)
