"""The pytest plug-in of the doctor: one test for each operator and column.

Every run of pytest imports this. So it is a package of its own, and imports neither torch nor
fusewheel unless there is an operator to examine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--doctor`, `--doctor-slow` and the setting `doctor`."""
    group = parser.getgroup("doctor", "fusewheel's doctor")
    group.addoption("--doctor", action="store_true", help="examine the operators in `doctor`")
    group.addoption("--doctor-slow", action="store_true", help="in the slow columns too")
    text = "operators, one a line: namespace::name module:samples"
    parser.addini("doctor", text, type="linelist", default=[])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Adds a test for each operator and column, before -k and -m select tests."""
    if config.getoption("doctor") or config.getoption("doctor_slow"):
        for line in config.getini("doctor"):
            items += _examinations(session, line, config.getoption("doctor_slow"))


def _examinations(session: pytest.Session, line: str, slow: bool) -> Iterator[pytest.Item]:
    from fusewheel import doctor
    from fusewheel.doctor import naming, testing

    operator, _, samples = line.partition(" ")
    try:
        given = naming.named(samples.strip())  # first: this import may bring the operator
        module = samples.strip().partition(":")[0]
        run = testing.runner(naming.operator_named(operator), given, modules=(module,))
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        raise pytest.UsageError(f"doctor: '{line}': {error}") from error
    for column in doctor.columns_named(slow=slow):
        name = f"{operator}[{column.name}]"
        place = f"doctor::{name}"
        yield Examination.from_parent(session, name=name, nodeid=place, run=run, column=column)


class Examination(pytest.Item):
    """An operator in a column."""

    def __init__(self, *, run: Any, column: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.run, self.column = run, column

    def runtest(self) -> None:
        """Passes, skips or fails."""
        from fusewheel.doctor.testing import verdict

        verdict(self.run(self.column))

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """The location of the test, which is in no file."""
        return self.path, None, self.name
