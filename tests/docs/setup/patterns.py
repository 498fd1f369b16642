"""Takes back the pattern that the page registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fusewheel.compiler import unregister


def around(names: dict[str, Any]) -> Iterator[None]:
    yield
    unregister("softcap")
