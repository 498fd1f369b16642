"""Programs that write in place at random; `nox -s fuzz` tries many more."""

from __future__ import annotations

import os
from collections import Counter

from compiler.writes import Program, check, programs
from hypothesis import HealthCheck, Phase, given, settings

# Without being asked for a number the same ones every time.
WANTED = os.environ.get("FUSEWHEEL_WRITES")
CASES = int(WANTED or 50)


def test_values_and_gradients_are_those_of_eager() -> None:
    ended: Counter[str] = Counter()

    @settings(
        max_examples=CASES,
        derandomize=WANTED is None,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(programs())
    def compare(program: Program) -> None:
        ended[check(program)] += 1

    compare()
    assert ended["ran"] > ended["raised"], ended
