"""One group of processes makes the checks of all the modules here that were asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from group import failures


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> dict[tuple[str, str], str]:
    here = Path(__file__).parent
    modules = {
        str(item.path): item.module for item in request.session.items if here == item.path.parent
    }
    night = any(item.get_closest_marker("nightly") for item in request.session.items)
    files = sorted(path for path, module in modules.items() if hasattr(module, "checks"))
    return failures(files, night)


@pytest.fixture
def passed(request: pytest.FixtureRequest, outcomes: dict) -> Callable[[str], None]:
    """Asserts that a check of this module passed in every process."""
    file = str(request.path)

    def passed(name: str) -> None:
        failed = [f"{where}, {what}: {text}" for (where, what), text in outcomes.items() if text]
        assert (file, name) in outcomes, f"not reached; what failed: {failed}"
        assert not outcomes[file, name], outcomes[file, name]

    return passed
