"""Makes pytest tests of an examination, one for each column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusewheel.doctor.column import Column
from fusewheel.doctor.examination import Samples, cases_of, columns_named, subject_of
from fusewheel.doctor.isolation import isolated
from fusewheel.doctor.outcome import Outcome, Status, examine


def tests_of(
    op: Any,
    samples: Samples,
    *,
    columns: Sequence[str] = (),
    slow: bool = False,
    seconds: float = 120.0,
    isolate: bool = True,
    modules: Sequence[str] = (),
    fixed: Sequence[str] = (),
) -> Callable[[Column], None]:
    """Returns a test function for pytest, with one test for each column:

        test_my_op = fusewheel.doctor.tests_of(torch.ops.my_package.my_op.default, samples)

    A column that does not apply is a skipped test, with the reason. The arguments are those of
    `fusewheel.doctor.check`.

    Raises:
        ValueError: there are no samples, or the name of a column or argument is unknown.
        TypeError: `op` has several overloads, or is nothing to call.
    """
    import pytest

    chosen = columns_named(columns, slow)
    run = runner(op, samples, seconds, isolate, modules, fixed)

    @pytest.mark.parametrize("column", chosen, ids=[column.name for column in chosen])
    def test(column: Column) -> None:
        __tracebackhide__ = True
        verdict(run(column))

    return test


def runner(
    op: Any,
    samples: Samples,
    seconds: float = 120.0,
    isolate: bool = True,
    modules: Sequence[str] = (),
    fixed: Sequence[str] = (),
) -> Callable[[Column], Outcome]:
    """A function that examines an operator in a column.

    Raises:
        ValueError: there are no samples, or the name of an argument is unknown.
        TypeError: `op` has several overloads, or is nothing to call.
    """
    subject = subject_of(op, modules, fixed)
    given = samples if callable(samples) else tuple(samples)
    cases_of(subject, given)

    def run(column: Column) -> Outcome:
        if not isolate:
            return examine(column, cases_of(subject, given))
        # Earlier tests may have used the thread pool, which does not survive a fork.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return isolated(column, lambda: cases_of(subject, given), seconds)
        finally:
            torch.set_num_threads(threads)

    return run


def verdict(outcome: Outcome) -> None:
    """Passes, skips or fails the calling test, by the outcome of a column."""
    import pytest

    __tracebackhide__ = True
    if outcome.status is Status.FAILS:
        lines = (
            outcome.trap,
            f"input: {outcome.arguments}",
            f"error: {outcome.reason}",
            f"mend:  {outcome.remedy}",
        )
        pytest.fail("\n".join(lines), pytrace=False)
    if outcome.status is not Status.WORKS:
        pytest.skip(f"{outcome.status.value}: {outcome.reason}")
