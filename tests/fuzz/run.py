"""Runs a check over drawn cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st


def try_all(
    config: pytest.Config,
    strategy: st.SearchStrategy[Any],
    check: Callable[[Any], None],
    count: int,
) -> None:
    """Checks `count` cases, drawn from the seed of the test or from `--hypothesis-seed`."""
    options = settings(
        max_examples=count + 1,  # the first is always the simplest
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    test = given(strategy)(check)
    if config.getoption("--hypothesis-seed") is None:
        test = seed(torch.initial_seed())(test)
    options(test)()
