"""Programs that write in place at random; `nox -s fuzz` tries many more."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from compiler.writes import Program, check, programs
from fuzz.run import try_all

# Each run has others, as `--seed` says.
CASES = int(os.environ.get("FUSEWHEEL_WRITES") or 50)


def test_values_and_gradients_are_those_of_eager(pytestconfig: pytest.Config) -> None:
    ended: Counter[str] = Counter()

    def compare(program: Program) -> None:
        ended[check(program)] += 1

    try_all(pytestconfig, programs(), compare, CASES)
    assert ended["ran"] > ended["raised"], ended
