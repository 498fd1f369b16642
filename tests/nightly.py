"""What only the night runs: more of what a change runs a part of.

`nox -s tests` leaves out what is marked `nightly`; `pytest`, and `nox -s tests -- PATH`, run it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

NIGHTLY = pytest.mark.nightly
IN_TRAINING = [
    pytest.param(True, id="training"),
    pytest.param(False, id="inference", marks=NIGHTLY),
]
"""Whether gradients are needed."""


def models_in_ways(models: Iterable[str], ways: Mapping[str, tuple[Any, ...]]) -> list[Any]:
    """Parameters `(model, *way)`, named `model-way`.

    A change tries the first model in every way, and every fourth model in the first way.
    """
    first_way = next(iter(ways))
    return [
        pytest.param(
            model,
            *way,
            id=f"{model}-{name}",
            marks=() if not i or (i % 4 == 0 and name == first_way) else NIGHTLY,
        )
        for i, model in enumerate(models)
        for name, way in ways.items()
    ]
