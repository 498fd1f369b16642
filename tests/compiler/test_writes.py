"""Programs that write in place at random; `nox -s fuzz` tries many more."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch
from compiler.writes import Program, check, programs
from fuzz.run import try_all

# Without being asked for a number the same ones every time.
WANTED = os.environ.get("FUSEWHEEL_WRITES")
CASES = int(WANTED or 50)


def test_values_and_gradients_are_those_of_eager(pytestconfig: pytest.Config) -> None:
    ended: Counter[str] = Counter()

    def compare(program: Program) -> None:
        ended[check(program)] += 1

    number = torch.initial_seed() if WANTED else None
    try_all(pytestconfig, programs(), compare, CASES, number)
    assert ended["ran"] > ended["raised"], ended
