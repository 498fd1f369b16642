"""Shared setup: nothing stays enabled."""

from __future__ import annotations

from collections.abc import Iterator

import fusewheel
import pytest
from fresh import fresh

assert fresh


@pytest.fixture(autouse=True)
def _disabled(fresh: None) -> Iterator[None]:
    yield
    fusewheel.inductor.disable()
