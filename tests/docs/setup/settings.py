"""The level of the logger stays as it was for other tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any


def around(names: dict[str, Any]) -> Iterator[None]:
    logger = logging.getLogger("fusewheel.compiler")
    level = logger.level
    yield
    assert logger.level == logging.INFO
    logger.setLevel(level)
