"""Runs a check over drawn cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st


def try_all(
    config: pytest.Config,
    strategy: st.SearchStrategy[Any],
    check: Callable[[Any], None],
    count: int,
    number: int | None,
) -> None:
    """Checks `count` cases, drawn from a number or from `--hypothesis-seed`; without, the same."""
    options = settings(
        max_examples=count + 1,  # the first is always the simplest
        derandomize=number is None,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    test = given(strategy)(check)
    if number is not None and config.getoption("--hypothesis-seed") is None:
        test = seed(number)(test)
    options(test)()
