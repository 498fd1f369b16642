"""A fault that is planted in a kernel turns its gate red: the kernels are in ../watched.cu.

Races and missing waits end a launch with an error: ../test_watch.py and ../test_tensor.py. A spill
is in test_resources.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_emulated.conftest import Build, run
from cuda_emulated.counts.figures import figures, missed
from cuda_emulated.counts.launches import parsed

ELEMENTS = 128
FLOAT = 4
LANES = 4
"""Of 4 bytes in a vector."""


@pytest.fixture(scope="module")
def watched(build: Build) -> Path:
    return build("watched.cu", watched=True)


@pytest.mark.parametrize(
    ("kernel", "minimum", "gates"),
    [
        ("copies_vectors", 2 * LANES, set()),
        ("copies", 2, {"wide"}),
        ("loads_apart", 2, {"bytes", "sectors", "wide"}),
        ("loads_in_half_the_lanes", 2, {"lanes", "sectors", "wide"}),
        ("fills", 1, {"wide"}),
        ("fills_every_second", 1, {"conflicts", "wide"}),
        ("fills_every_second_vector", 1, {"conflicts", "wide"}),
    ],
)
def test_a_planted_fault_misses_its_gate(watched, kernel, minimum, gates):
    done = run(watched, kernel)
    found = figures(parsed(done.stdout), minimum * ELEMENTS * FLOAT)
    assert set(missed(found)) == gates
